"""Servers with disks of their own and one folder that they share: what one has evaluated the others need not."""

from __future__ import annotations

from pathlib import Path

import pytest
from cache_server import CacheServer, Serve, say, toy
from helpers import wait_until

from toys.corpus import TEXT

pytestmark = pytest.mark.server

FLAGS = ("--parallel", "1", "--ctx-size", "4096", "--cache-ssd-page-size", "32", "--cache-ssd-settle", "0")
ROUNDING = 1e-3  # of batches that differ in size: one server has more in its slot than another


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    folder.mkdir()
    return folder


def start(serve: Serve, kind: str, own: Path, shared: Path, *flags: str) -> CacheServer:
    return serve(toy(kind), *FLAGS, "--cache-ssd-shared", str(shared), *flags, cache=own)


def objects(shared: Path) -> list[Path]:
    return [path for path in shared.rglob("*") if path.suffix in (".seg", ".anc")]


def seen(server: CacheServer) -> dict[str, object]:
    """What the server says of the folder, once it has looked at it."""
    wait_until(lambda: server.cache()["shared"]["on"], 30, "the folder is seen")
    return dict(server.cache()["shared"])


@pytest.mark.parametrize("kind", ["dense", "hybrid-moe", "swa-gemma3"])
def test_conversation_goes_on_at_another_server_and_comes_back(
    serve: Serve, tmp_path: Path, shared: Path, kind: str
) -> None:
    first = start(serve, kind, tmp_path / "a", shared)
    words = first.tokens(TEXT)
    said = words[:300]
    said = [*said, *first.complete(said).tokens]
    assert first.flush()["shared"]["unpublished"] == 0
    second = start(serve, kind, tmp_path / "b", shared)
    seen(second)
    said += words[400:420]
    there = second.complete(said)
    assert there.source == "shared_folder" and there.reused >= 300, there.timings
    assert there.apart(first.complete(said)) < ROUNDING
    said = [*said, *there.tokens, *words[450:470]]
    second.flush()
    first.kill()  # What is in the folder outlasts whoever has put it there.
    third = start(serve, kind, tmp_path / "c", shared)
    seen(third)
    back = third.complete(said)
    assert back.source == "shared_folder" and back.reused >= len(said) - 21, back.timings
    assert back.apart(second.complete(said)) < ROUNDING
    third.stop()
    again = start(serve, kind, tmp_path / "c", shared).complete(said)
    assert again.source == "cold" and again.reused >= len(said) - 21, "it is stored here by now"


def test_anchor_that_settles_after_its_rows_is_shared(serve: Serve, tmp_path: Path, shared: Path) -> None:
    first = start(serve, "hybrid-moe", tmp_path / "a", shared, "--cache-ssd-settle", "6")
    prompt = first.tokens(TEXT)[:300]
    first.complete(prompt)
    wait_until(lambda: len(objects(shared)) > 0, 30, "the rows are there")
    there = {path.suffix for path in objects(shared)}
    if first.cache()["state"]["unwritten"] > 0:  # It had not settled when that was looked at.
        assert there == {".seg"}
    wait_until(lambda: {path.suffix for path in objects(shared)} == {".seg", ".anc"}, 60, "the anchor has followed")
    second = start(serve, "hybrid-moe", tmp_path / "b", shared)
    seen(second)
    answer = second.complete(prompt)
    assert answer.source == "shared_folder" and answer.reused >= 290, answer.timings


def test_damaged_files_cost_an_evaluation_and_nothing_else(serve: Serve, tmp_path: Path, shared: Path) -> None:
    first = start(serve, "dense", tmp_path / "a", shared)
    prompt = first.tokens(TEXT)[:300]
    expected = first.complete(prompt)
    first.flush()
    second = start(serve, "dense", tmp_path / "b", shared)
    assert seen(second)["usable_files"] == len(objects(shared)) > 0
    for path in objects(shared):
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    answer = second.complete(prompt)
    assert answer.reused == 0 and answer.apart(expected) < ROUNDING
    told = second.cache()["shared"]
    assert told["on"] and told["damaged"] >= 1 and told["failed_fetches"] == 1


def test_named_users_are_shared_only_when_said(serve: Serve, tmp_path: Path, shared: Path) -> None:
    first = start(serve, "dense", tmp_path / "a", shared)
    prompt = first.tokens(TEXT)[:300]
    first.complete(prompt, llama_user_id="ann")
    first.flush()
    assert objects(shared) == []
    first.stop()
    second = start(serve, "dense", tmp_path / "b", shared, "--cache-ssd-share-users")
    second.complete(prompt, llama_user_id="ann")
    second.flush()
    third = start(serve, "dense", tmp_path / "c", shared, "--cache-ssd-share-users")
    seen(third)
    # Nothing was measured before the first one, so that it waits for the folder in any case.
    assert third.complete(prompt, llama_user_id="ann").source == "shared_folder"
    assert third.complete(prompt, llama_user_id="bob").reused == 0
    assert third.complete(prompt).reused == 0


def test_removing_a_conversation_removes_what_others_could_read(serve: Serve, tmp_path: Path, shared: Path) -> None:
    server = start(serve, "dense", tmp_path / "a", shared)
    server.chat([say("user", TEXT[:2000])])
    server.flush()
    n_files = len(objects(shared))
    assert n_files > 0
    (listed,) = server.get("/cache/conversations")["conversations"]
    removed = server.request("DELETE", f"/cache/conversations/{listed['hash']}").json()
    assert removed["shared"] == {"removed": True, "files": n_files}
    assert objects(shared) == []


def test_folder_that_is_not_there_is_said_and_not_made(serve: Serve, tmp_path: Path) -> None:
    missing = tmp_path / "unmounted"
    server = start(serve, "dense", tmp_path / "a", missing)
    prompt = server.tokens(TEXT)[:100]
    server.complete(prompt)
    wait_until(lambda: "no such folder" in server.cache()["shared"]["why"], 30, "it is said")
    assert server.flush()["shared"]["on"] is False
    missing.mkdir()
    wait_until(lambda: len(objects(missing)) > 0, 60, "the folder is used when it is there")
