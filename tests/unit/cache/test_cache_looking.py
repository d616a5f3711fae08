"""What `llama-run cache` shows of a store: `stats`, `ls` and their JSON."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stores import (
    BLOCK,
    MODEL,
    OTHER,
    conversation,
    fill,
    flip_last_byte,
    make_clone,
    prompt,
    rows_of,
    run,
    run_json,
    segment_files,
    snapshot,
    store_at,
)

from pyrun import _kernels
from pyrun.cache.look import list_cache


def test_looking_changes_nothing(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(cache, prompt(1), prompt(2))
    fill(cache, prompt(1), model=OTHER, user="alice")
    flip_last_byte(segment_files(cache)[0])
    (cache / MODEL.hex() / "pages" / "tmp-1").write_bytes(b"unfinished")
    before = snapshot(cache)
    for command in ("ls", "stats", "verify"):
        run(capsys, "cache", command, "--cache-ssd", cache)
        run(capsys, "cache", command, "--cache-ssd", cache, "--json")
    assert snapshot(cache) == before


@pytest.mark.parametrize("command", ["ls", "stats", "verify", "gc", "rm --all --yes"])
def test_wrong_folders_are_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    words = ["cache", *command.split(), "--cache-ssd"]
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"cat")
    (tmp_path / "photos" / ("0" * 32)).mkdir()  # a name like a fingerprint's, but no store
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "README.md").write_text("as in a fresh clone")
    before = snapshot(tmp_path)

    code, _, err = run(capsys, *words, tmp_path / "missing")
    assert code == 1 and f"error: there is no folder {tmp_path}/missing" in err and "hint: " in err
    code, _, err = run(capsys, *words, tmp_path / "photos")
    assert code == 1 and f"{tmp_path}/photos is not a cache of llama-run: it holds" in err
    code, _, err = run(capsys, *words, tmp_path / "photos" / "cat.jpg")
    assert code == 1 and "cat.jpg is not a folder" in err
    code, out, err = run(capsys, *words, tmp_path / "new")
    assert code == 0 and ("nothing is stored" in err or "on disk" in out)
    assert snapshot(tmp_path) == before


def test_default_folder_is_that_of_the_clone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_RUN_HOME", str(make_clone(tmp_path)))
    assert f"there is no folder {tmp_path}/kv-cache" in run(capsys, "cache", "ls")[2]
    fill(tmp_path / "kv-cache", prompt(1))
    assert conversation(prompt(1)) in run(capsys, "cache", "ls")[1]


def test_restores_are_told(cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What went on from a shared prefix is counted by a running server only."""
    fill(cache, prompt(1, 40))
    with store_at(cache) as store:
        store.load(prompt(1, 40)[:20] + prompt(2, 20))
    out = run(capsys, "cache", "stats", "--cache-ssd", cache)[1]
    assert "  conversations  1 with 1 turn, continued 0 times\n" in out and "  restores" not in out
    state = dict.fromkeys(
        ("conversations", "users", "hits", "checkpoints", "pages", "segments", "anchors", "disk_bytes"), 1
    )
    told = {
        "enabled": True,
        "path": str(cache),
        "fingerprint": MODEL.hex(),
        "state": state,
        "counters": {"temporary_removed": 0, "loose_segments": 0, "read_errors": 0, "loads": 2},
        "damaged": {},
    }
    monkeypatch.setattr("pyrun.cache.remote.ask", lambda url, path, key: told)
    out = run(capsys, "cache", "stats", "--url", "127.0.0.1:1")[1]
    assert re.search(r"restores +2 since the server started", out)


def test_ls_shows_what_is_stored(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shared = prompt(1, 1100)  # a conversation is known by its first 1024 tokens
    longer = [*shared, *prompt(2, 30)]
    fill(cache, prompt(5), shared, longer)
    fill(cache, prompt(3), user="alice")
    models = run_json(capsys, "cache", "ls", "--all-users", "--cache-ssd", cache)["models"]
    assert [model["fingerprint"] for model in models] == [MODEL.hex()]
    found = {(c["hash"], c["user"]): c for c in models[0]["conversations"]}
    alice = _kernels.user_key("alice").hex()
    assert set(found) == {
        (conversation(prompt(5)), None),
        (conversation(shared), None),
        (conversation(prompt(3)), alice),
    }
    newest = found[conversation(shared), None]
    assert (newest["turns"], newest["tokens"], newest["tier"], newest["backend"]) == (2, 1130, "cold", "cpu")
    assert newest["bytes_shared"] == 0 and newest["bytes_own"] % BLOCK == 0
    out = run(capsys, "cache", "ls", "--all-users", "--cache-ssd", cache)[1]
    assert f"model {MODEL.hex()}" in out
    assert " 1,130 " in out and all(c["hash"] in out for c in found.values()) and alice[:8] in out and " s ago" in out
    _, out, err = run(capsys, "cache", "ls", "--cache-ssd", cache)
    assert conversation(shared) in out and conversation(prompt(3)) not in out
    assert err == "1 conversation of users with an id: --all-users lists them\n"


def test_shared_bytes_do_not_count_as_own(cache: Path) -> None:
    static = prompt(1, 64)
    with store_at(cache) as store:
        for seed in (2, 3):
            tokens = [*static, *prompt(seed, 30)]
            store.save(tokens, rows_of(tokens, 64), n_static=64)
    first, second = list_cache(cache).models[0].conversations
    assert first.bytes_shared == second.bytes_shared > 0
    with store_at(cache) as store:
        assert store.remove_conversation(bytes(16), int(first.hash, 16)) == first.bytes_own


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 90), st.sampled_from(["", "ann"])), min_size=1, max_size=6))
def test_json_agrees_with_the_bytes_on_disk(saves: list[tuple[int, int, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "cache"
        for seed, length, user in saves:
            fill(cache, prompt(seed, length), user=user)
        result = plain_json("stats", cache)
        sizes = [max(0, -(-path.lstat().st_size // BLOCK) * BLOCK) for path in cache.rglob("*") if path.is_file()]
        folders = [path for path in [cache, *cache.rglob("*")] if path.is_dir()]
        sizes += [max(BLOCK, path.stat().st_blocks * 512) for path in folders]
        assert result["bytes"] == sum(sizes)
        model = result["models"][0]
        assert model["bytes"] == result["bytes"] - 2 * BLOCK  # the folder itself and its tag
        with store_at(cache, inspect=True) as store:
            assert store.stats().disk_bytes == result["bytes"]
        checkpoints = list(cache.rglob("ckpt-*.bin"))
        assert model["turns"] == len(checkpoints)
        assert model["conversations"] == len({path.parent for path in checkpoints})
        assert model["page_files"] == len(list(cache.rglob("*.seg")))
        assert model["users"] == len({user for _, _, user in saves} - {""})
        listed = plain_json("ls --all-users", cache)["models"][0]["conversations"]
        assert {(c["hash"], c["user"]) for c in listed} == {
            (path.parent.name, path.parts[-3] if path.parts[-4] == "u" else None) for path in checkpoints
        }
        # Removing frees what was promised: the own bytes of each, one after the other.
        for c in listed:
            now = {(d.hash, d.user): d for d in list_cache(cache).models[0].conversations}
            before = _kernels.measure_tree(str(cache))
            with store_at(cache) as store:
                freed = store.remove_conversation(bytes.fromhex(c["user"] or "00" * 16), int(c["hash"], 16))
            assert freed == now[c["hash"], c["user"]].bytes_own == before - _kernels.measure_tree(str(cache))


def plain_json(command: str, cache: Path) -> Any:
    """Like run_json, for tests that cannot use function-scoped fixtures."""
    from click.testing import CliRunner

    from pyrun.cli.main import cli

    result = CliRunner().invoke(cli, ["cache", *command.split(), "--cache-ssd", str(cache), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)
