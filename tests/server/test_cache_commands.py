"""`llama-run cache` while a server has the state open: the server is found by its lock, and asked."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import requests
from cache_server import Serve, toy
from stores import WITHOUT_NATIVE, make_clone, run, run_json

from pyrun._kernels import user_key
from pyrun.cache.owners import remember

pytestmark = pytest.mark.server


def test_server_that_has_the_state_is_asked_and_removes(
    serve: Serve, kv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_RUN_HOME", str(make_clone(tmp_path)))
    server = serve(toy("dense"), "--ctx-size", "2048", cache=kv)
    prompt = server.tokens("Once upon a time there was a server that kept what it had heard.")
    server.complete(prompt, n_predict=1)
    server.complete(prompt, n_predict=1, llama_user_id="alice")
    server.flush()
    remember(kv, toy("dense"), server.get("/cache")["fingerprint"])
    (listing,) = run_json(capsys, "cache", "ls", "--cache-ssd", kv)["models"]
    assert listing["model"] == toy("dense").stem
    (conversation,) = listing["conversations"]
    assert run_json(capsys, "cache", "stats", "--cache-ssd", kv, "--model", "DENSE")["models"][0]["users"] == 1
    removed = run_json(capsys, "cache", "rm", conversation["hash"][:8], "--yes", "--cache-ssd", kv)
    assert removed["bytes_freed"] > 0
    assert server.get("/cache/conversations")["conversations"] == []
    assert run_json(capsys, "cache", "rm", "--user", "alice", "--yes", "--cache-ssd", kv)["bytes_freed"] > 0
    assert server.complete(prompt, n_predict=1, llama_user_id="alice").reused == 0
    code, _, err = run(capsys, "cache", "gc", "--corrupt", "--cache-ssd", kv)
    assert code == 1 and "stop that server first" in err


def test_server_tells_what_is_stored_where_the_native_module_is_missing(
    serve: Serve, kv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_RUN_HOME", str(make_clone(tmp_path)))
    server = serve(toy("dense"), "--ctx-size", "2048", cache=kv)
    server.complete(server.tokens("Once upon a time there was a server that was asked by a newer Python."), n_predict=1)
    server.flush()
    remember(kv, toy("dense"), server.get("/cache")["fingerprint"])
    command = ["cache", "ls", "--json", "--cache-ssd", str(kv)]
    (expected,) = run_json(capsys, *command)["models"]
    for how in (command, [*command, "--model", "DENSE"], ["cache", "ls", "--json", "--url", server.url]):
        asked = subprocess.run([*WITHOUT_NATIVE, *how], capture_output=True, text=True)
        assert asked.returncode == 0, asked.stderr
        (listing,) = json.loads(asked.stdout)["models"]
        assert listing["conversations"] == expected["conversations"] and listing["model"] == toy("dense").stem
    others = subprocess.run([*WITHOUT_NATIVE, *command, "--model", "qwen"], capture_output=True, text=True)
    assert json.loads(others.stdout)["models"] == []


def test_server_does_for_the_owner_of_the_folder_what_concerns_all_users(
    serve: Serve, kv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_RUN_HOME", str(make_clone(tmp_path)))
    server = serve(toy("dense"), "--ctx-size", "2048", cache=kv)
    prompt = server.tokens("Once upon a time there was a server that kept what it had heard.")
    for user in ("", "alice", "bob"):
        server.complete(prompt, n_predict=1, llama_user_id=user)
    server.flush()

    def listed(*flags: str) -> list[str | None]:
        (listing,) = run_json(capsys, "cache", "ls", *flags, "--cache-ssd", kv)["models"]
        return sorted((c["user"] for c in listing["conversations"]), key=str)

    everybody = sorted([None, user_key("alice").hex(), user_key("bob").hex()], key=str)
    assert listed() == [None] and listed("--all-users") == everybody

    key = kv / ".owner-key"
    assert key.stat().st_mode & 0o777 == 0o600
    for headers in ({}, {"X-Cache-Owner": "0" * 64}):
        for method, path in (("GET", "everything"), ("DELETE", "everything"), ("POST", "gc"), ("POST", "verify")):
            answer = requests.request(method, f"{server.url}/cache/{path}", headers=headers, json={}, timeout=20)
            assert (path, answer.status_code) == (path, 403), answer.text

    said = key.read_text()
    key.chmod(0o644)
    answer = requests.get(f"{server.url}/cache/everything", headers={"X-Cache-Owner": said}, timeout=20)
    assert answer.status_code == 403, "others may have read it, or put it there"
    key.chmod(0o600)

    (sound,) = run_json(capsys, "cache", "verify", "--cache-ssd", kv)["models"]
    assert sound["files"] > 3 and sound["damaged"] == []
    (pages, *_) = (kv / sound["fingerprint"] / "pages").iterdir()
    content = bytearray(pages.read_bytes())
    content[-1] ^= 1
    pages.write_bytes(content)
    code, out, err = run(capsys, "cache", "verify", "--cache-ssd", kv)
    assert code == 1 and f"{pages}: bad_checksum" in out and "fail their checksum" in err

    aside = kv / sound["fingerprint"] / "quarantine" / "something"
    aside.parent.mkdir(exist_ok=True)
    aside.write_bytes(bytes(5000))
    assert run_json(capsys, "cache", "gc", "--cache-ssd", kv)["bytes_freed"] >= 5000
    assert not aside.exists()

    removed = run_json(capsys, "cache", "rm", "--all", "--yes", "--cache-ssd", kv)
    assert removed["bytes_freed"] > 0 and len(removed["conversations"]) == 3
    assert listed("--all-users") == [] and not list((kv / sound["fingerprint"] / "pages").iterdir())
    assert server.get("/cache/requests")["requests"] == []
    for user in ("", "alice"):
        assert server.complete(prompt, n_predict=1, llama_user_id=user).reused == 0
