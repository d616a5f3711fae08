"""`llama-run cache` while a server has the state open: the server is found by its lock, and asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from cache_server import Serve, toy
from stores import make_clone, run, run_json

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
    code, _, err = run(capsys, "cache", "rm", "--all", "--yes", "--cache-ssd", kv)
    assert code == 1 and "stop that server first" in err
