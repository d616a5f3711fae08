"""`llama-run cache` on stores that a server holds, or that this user may not read or write."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from stores import (
    MODEL,
    OTHER,
    as_somebody_else,
    conversation,
    fill,
    holding,
    make_clone,
    prompt,
    run,
    snapshot,
)


@pytest.mark.parametrize(
    "command", ["ls", "stats", "verify", "gc", "gc --corrupt", "rm --all --yes", "rm {hash} --yes"]
)
def test_store_of_a_running_server_is_not_touched(
    cache: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    fill(cache, prompt(1))
    with holding(cache) as pid:
        before = snapshot(cache)
        words = command.format(hash=conversation(prompt(1))).split()
        code, out, err = run(capsys, "cache", *words, "--cache-ssd", cache)
        assert code == 1 and out in ("", run_stats_line(out))
        assert f"error: {cache / MODEL.hex()} is in use by " in err and f"(pid {pid})" in err and "hint: " in err
        assert snapshot(cache) == before


def run_stats_line(out: str) -> str:
    """The first line of `stats` is about the folder, which nobody holds."""
    return out if out.count("\n") == 1 and "free beside it" in out else ""


def test_held_model_does_not_hide_the_others(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(cache, prompt(1))
    fill(cache, prompt(2), model=OTHER)
    with holding(cache) as pid:
        code, out, err = run(capsys, "cache", "ls", "--cache-ssd", cache, "--json")
        found = json.loads(out)
        assert code == 1 and f"(pid {pid})" in err
        assert [model["fingerprint"] for model in found["models"]] == [OTHER.hex()]
        assert [(held["fingerprint"], held["pid"]) for held in found["held"]] == [(MODEL.hex(), pid)]
        assert run(capsys, "cache", "verify", "--cache-ssd", cache, "--model", "f2")[0] == 0
        words = ("rm", conversation(prompt(2)), "--yes", "--cache-ssd", cache)
        code, out, err = run(capsys, "cache", *words)
        assert code == 1 and f"(pid {pid})" in err and "1 conversation removed" in out


def test_folder_without_permission_is_an_error(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(cache, prompt(1))
    cache.chmod(0)
    try:
        with as_somebody_else():
            for command in ("ls", "gc"):
                code, _, err = run(capsys, "cache", command, "--cache-ssd", cache)
                assert code == 1 and f"error: cannot read {cache}: Permission denied" in err and "hint: run as" in err
    finally:
        cache.chmod(0o700)


def test_looking_does_not_need_the_right_to_write(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory() as folder:  # tmp_path lies below a folder that only its owner may enter
        Path(folder).chmod(0o755)
        monkeypatch.setenv("LLAMA_RUN_HOME", str(make_clone(Path(folder))))
        cache = Path(folder) / "cache"
        fill(cache, prompt(1))
        tree = [cache, *cache.rglob("*")]
        for path in tree:
            path.chmod(0o500 if path.is_dir() else 0o400)
        try:
            with as_somebody_else(*tree):
                assert conversation(prompt(1)) in run(capsys, "cache", "ls", "--cache-ssd", cache)[1]
                assert run(capsys, "cache", "verify", "--cache-ssd", cache)[0] == 0
                for command in (["gc"], ["rm", "--all", "--yes"]):
                    code, _, err = run(capsys, "cache", *command, "--cache-ssd", cache)
                    assert code == 1 and f"error: no permission to change {cache}" in err
        finally:
            for path in tree:
                path.chmod(0o700)


def test_models_that_refuse_keep_nothing_from_being_done_to_the_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setenv("LLAMA_RUN_HOME", str(make_clone(Path(folder))))
        cache = Path(folder) / "cache"
        last = bytes([0xF3]) + bytes(15)
        for seed, model in enumerate((MODEL, OTHER, last)):
            fill(cache, prompt(seed), model=model)
        closed = [cache / model.hex() for model in (MODEL, OTHER)]
        with as_somebody_else(cache, *cache.rglob("*")):
            for path in closed:
                path.chmod(0o500)
            for command in (["gc"], ["gc", "--corrupt"], ["rm", "--all", "--yes"]):
                code, out, err = run(capsys, "cache", *command, "--cache-ssd", cache, "--json")
                told, why = json.loads(out), [f"no permission to change {path}" for path in closed]
                assert code == 1 and [line for line in err.splitlines() if line.startswith("error: ")] == [
                    f"error: {one}" for one in why
                ]
                assert [one["message"] for one in told["refused"]] == why and all(
                    one["hint"] for one in told["refused"]
                )
                if command[0] == "gc":
                    assert [one["fingerprint"] for one in told["models"]] == [last.hex()]
                else:
                    assert [one["hash"] for one in told["conversations"]] == [conversation(prompt(2))]
                    assert told["bytes_freed"] > 0
            assert [path.is_dir() for path in (*closed, cache / last.hex())] == [True, True, False]
            for path in closed:
                path.chmod(0o700)


def test_models_that_cannot_be_read_keep_nothing_from_being_done_to_the_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they come to be where a server was started with sudo."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setenv("LLAMA_RUN_HOME", str(make_clone(Path(folder))))
        cache = Path(folder) / "cache"
        for model in (MODEL, OTHER):
            fill(cache, prompt(1), prompt(2), prompt(3), model=model)
            fill(cache, prompt(4), model=model, user="alice")
        closed = cache / MODEL.hex()
        closed.chmod(0)
        with as_somebody_else(cache, *(cache / OTHER.hex()).rglob("*"), cache / OTHER.hex()):
            of_other = [one["hash"] for one in _listed(capsys, cache)]
            assert len(of_other) == 3

            def tell(*words: str) -> Any:
                code, out, err = run(capsys, "cache", *words, "--cache-ssd", cache, "--json")
                told = json.loads(out)
                (why,) = told["refused"]
                assert code == 1 and err.endswith(f"error: {why['message']}\nhint: {why['hint']}\n"), words
                assert why["message"].startswith(f"{closed}") and "Permission denied" in why["message"]
                return told

            assert tell("stats")["models"][0]["conversations"] == 4 and tell("stats")["bytes"] > 0
            for words in (["gc"], ["gc", "--corrupt"], ["verify"]):
                assert [one["fingerprint"] for one in tell(*words)["models"]] == [OTHER.hex()]
            assert [one["ttl"] for one in tell("keep", of_other[0], "--ttl", "1h")["conversations"]] == ["1h"]
            assert [one["hash"] for one in tell("rm", of_other[0], "--yes")["conversations"]] == [of_other[0]]
            assert tell("rm", of_other[0], "--yes")["conversations"] == []  # it may be in the one that is closed
            assert len(tell("rm", "--user", "alice", "--yes")["conversations"]) == 1
            assert tell("rm", "--all", "--model", "f1", "--yes")["conversations"] == []
            assert len(tell("rm", "--all", "--yes")["conversations"]) == 2
            assert not (cache / OTHER.hex()).exists()
        closed.chmod(0o700)


def _listed(capsys: pytest.CaptureFixture[str], cache: Path) -> Any:
    (listing,) = json.loads(run(capsys, "cache", "ls", "--cache-ssd", cache, "--json")[1])["models"]
    return listing["conversations"]


def test_read_only_disk_can_be_looked_at(cache: Path) -> None:
    fill(cache, prompt(1))
    mount = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
    inside = ["unshare", "-rm", "sh", "-c", mount, str(cache)]
    if shutil.which("unshare") is None or subprocess.run([*inside, "true"], capture_output=True).returncode != 0:
        pytest.skip("no read-only disk can be made here")
    command = [*inside, sys.executable, "-c", "from pyrun.__main__ import main; main()", "cache"]
    for words in (["ls"], ["stats"], ["verify"]):
        result = subprocess.run([*command, *words, "--cache-ssd", str(cache)], capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
    for words in (["gc"], ["rm", "--all", "--yes"]):
        result = subprocess.run([*command, *words, "--cache-ssd", str(cache)], capture_output=True, text=True)
        assert result.returncode == 1 and "is on a read-only disk" in result.stderr
