"""`llama-run start`, `status`, `logs` and `stop` with the real server."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import requests
from cache_server import smollm2
from helpers import free_port, is_running, wait_until
from stores import make_built_clone, run

pytestmark = pytest.mark.server


def test_server_in_the_background_answers_and_is_stopped(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_built_clone(tmp_path)
    monkeypatch.setenv("LLAMA_RUN_HOME", str(root))
    monkeypatch.setattr("pyrun.cli.background.own_command", lambda: [sys.executable, "-m", "pyrun"])
    port = free_port()
    (root / "llama-run.toml").write_text(f"[server]\nport = {port}\n")
    words = "--backend cpu --no-build --ctx 512 -- --alias me"
    code, _, err = run(capfd, "start", str(smollm2()), *words.split())
    assert code == 0, err
    (one,) = json.loads(run(capfd, "status", "--json")[1])
    assert one["port"] == port and one["state"] == "ready"
    assert requests.get(f"{one['url']}/v1/models", timeout=20).json()["data"][0]["id"] == "me"
    # The server answers a moment before its launcher has seen it and says so.
    wait_until(lambda: "ready at" in run(capfd, "logs", "-n", "50")[1], 30, "the log says that it is ready")
    assert "listening" in run(capfd, "logs", "--server")[1]
    assert run(capfd, "stop")[0] == 0
    assert not is_running(one["pid"])
