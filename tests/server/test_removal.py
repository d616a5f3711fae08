"""What is removed stays removed, also for requests that wait; and a folder that somebody deletes is missed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from cache_server import Answer, CacheServer, Serve, Tokens, toy
from helpers import wait_until

from toys.corpus import TEXT

pytestmark = pytest.mark.server

LINES = TEXT.splitlines()
ONE_SLOT = ("--parallel", "1", "--ctx-size", "16384", "--cache-ssd-page-size", "32", "--metrics")


@contextmanager
def occupied_slot(server: CacheServer) -> Iterator[None]:
    """By an answer that is longer than anybody waits; hanging up ends it."""
    body = {"prompt": "Once", "n_predict": 15_000, "ignore_eos": True, "stream": True, "llama_user_id": "busy"}
    with server.request("POST", "/completion", body, stream=True) as busy:
        assert busy.status_code == 200
        wait_until(lambda: server.get("/slots")[0]["is_processing"], 20, "the slot is busy")
        yield


def ask_behind(server: CacheServer, prompt: Tokens, user: str, path: str) -> list[Answer]:
    """Five requests wait for the slot while DELETE goes through."""
    with ThreadPoolExecutor(5) as clients:
        with occupied_slot(server):
            asked = [clients.submit(server.complete, prompt, 1, llama_user_id=user) for _ in range(5)]
            wait_until(lambda: server.n_waiting() == 5, 20, "all of them wait")
            assert server.request("DELETE", path).status_code == 200
            assert server.n_waiting() == 5, "the slot was free too early to show anything"
        return [answer.result() for answer in asked]


@pytest.mark.parametrize("n_lines", [2, 60], ids=["short", "long"])
def test_requests_that_wait_neither_restore_nor_store_a_removed_conversation(
    serve: Serve, kv: Path, n_lines: int
) -> None:
    server = serve(toy("dense"), *ONE_SLOT, cache=kv)
    prompt = server.tokens(" ".join(LINES[:n_lines])) * (1 if n_lines == 2 else 3)
    assert (len(prompt) > 1024) == (n_lines == 60)
    server.complete(prompt, n_predict=1)
    server.flush()
    (conversation,) = server.conversations()
    first, *_ = ask_behind(server, prompt, "", f"/cache/conversations/{conversation['hash']}")
    assert first.reused == 0, first.timings
    server.flush()
    assert conversation["hash"] not in {c["hash"] for c in server.conversations()}
    stored = {c["tokens"] for c in server.conversations()}
    assert all(tokens != conversation["tokens"] for tokens in stored), stored


def test_requests_that_wait_neither_restore_nor_store_for_a_removed_user(serve: Serve, kv: Path) -> None:
    server = serve(toy("dense"), *ONE_SLOT, cache=kv)
    prompt = server.tokens(" ".join(LINES[:6]))
    server.complete(prompt, n_predict=1, llama_user_id="ann")
    server.flush()
    first, *_ = ask_behind(server, prompt, "ann", "/cache/users/ann")
    assert first.reused == 0, first.timings
    server.flush()
    assert server.get("/cache/conversations?user_id=ann")["conversations"] == []
    # Those who come later are stored again.
    server.complete(prompt, n_predict=1, llama_user_id="ann")
    server.flush()
    assert len(server.get("/cache/conversations?user_id=ann")["conversations"]) == 1


def test_removal_without_a_name_is_the_clients_fault(serve: Serve, kv: Path) -> None:
    server = serve(toy("dense"), *ONE_SLOT, cache=kv)
    assert server.request("DELETE", "/cache/users/").status_code in (400, 404)
    missing = server.request("DELETE", "/cache/conversations/0123456789abcdef")
    assert missing.status_code == 404 and missing.json()["error"]["message"] == "no such conversation is stored"


def test_deleted_folder_is_counted_and_said(serve: Serve, kv: Path) -> None:
    server = serve(toy("dense"), *ONE_SLOT, cache=kv)
    server.complete(server.tokens(" ".join(LINES[:4])))
    server.flush()
    shutil.rmtree(kv)
    wanted = server.complete(server.tokens(" ".join(LINES[4:9])))
    server.flush()
    for _ in range(3):
        assert server.complete(server.tokens(" ".join(LINES[4:9]))).text == wanted.text
        about = server.flush()
        assert about["counters"]["skipped_io_error"] > 0 and "removed this folder" in about["last_error"], about
    assert server.said().count("cache: not storing (io_error): ") == 1


def test_folder_that_others_may_write_is_named(serve: Serve, kv: Path) -> None:
    kv.mkdir()
    kv.chmod(0o777)
    server = serve(toy("dense"), *ONE_SLOT, cache=kv)
    assert "can be written by other users" in server.said() and "chmod 700" in server.said()


def test_removal_that_the_disk_refuses_is_no_success(serve: Serve, kv: Path) -> None:
    """A folder that lies where a file was is refused to whoever removes files, root among them."""
    server = serve(toy("dense"), *ONE_SLOT, cache=kv)
    prompt = server.tokens(" ".join(LINES[:6]))
    server.complete(prompt, n_predict=1, llama_user_id="alice")
    server.flush()
    (conversation,) = server.get("/cache/conversations?user_id=alice")["conversations"]
    what = f"/cache/conversations/{conversation['hash']}?user_id=alice"
    [pages] = kv.rglob("*.seg")
    pages.unlink()
    pages.mkdir()
    for _ in range(2):
        refused = server.request("DELETE", what)
        assert refused.status_code == 500, refused.text
        assert str(pages) in refused.json()["error"]["message"]
    assert server.complete(prompt, n_predict=1, llama_user_id="alice").reused == 0
    pages.rmdir()
    assert server.request("DELETE", what).status_code == 200
