"""The real llama-server, started as a user starts it: by ./llama-run."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import requests
from backend import BACKEND, ONE_THREAD, PATIENCE, require_backend
from helpers import ROOT, free_port, is_running, only_server, wait_until

START_SECONDS = 120 * PATIENCE


@dataclass
class Server:
    launcher: subprocess.Popen[str]
    port: int
    output: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return only_server(self.launcher.pid)

    def is_healthy(self) -> bool:
        try:
            return requests.get(f"{self.url}/health", timeout=2).status_code == 200
        except requests.RequestException:
            return False

    def wait_until_healthy(self, seconds: float = START_SECONDS) -> None:
        wait_until(lambda: self.is_healthy() or self.launcher.poll() is not None, seconds, "healthy", self.said)
        assert self.launcher.poll() is None, self.said()

    def stop(self) -> int:
        pid = self.pid if self.launcher.poll() is None and psutil.Process(self.launcher.pid).children() else None
        self.launcher.send_signal(signal.SIGINT)
        code = self.launcher.wait(60)
        assert pid is None or not is_running(pid), "llama-server was left behind"
        return code

    def said(self) -> str:
        return self.output.read_text()

    def post(self, path: str, body: object) -> requests.Response:
        return requests.post(f"{self.url}{path}", json=body, timeout=300 * PATIENCE)


StartServer = Callable[..., Server]


@pytest.fixture(scope="session")
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    """Starts servers on ports and caches of their own: start_server(MODEL or None, FLAG, ...)."""
    require_backend()
    started: list[Server] = []

    def start(model: Path | None = None, *flags: str, ready: bool = True) -> Server:
        port = free_port()
        output = tmp_path_factory.mktemp("server") / "output"
        command = [str(ROOT / "llama-run"), "--server", *([str(model)] if model else []), "--no-build"]
        command += ["--backend", BACKEND]
        if not any(flag in ("--cache-ssd", "--no-cache-ssd") for flag in flags):
            command += ["--cache-ssd", str(output.with_name("kv-cache"))]
        with output.open("w") as file:
            launcher = subprocess.Popen(
                [*command, "--port", str(port), *flags],
                stdout=file,
                stderr=subprocess.STDOUT,
                text=True,
                env=os.environ | ONE_THREAD,
            )
        server = Server(launcher, port, output)
        started.append(server)
        if ready:
            server.wait_until_healthy()
        return server

    yield start
    for server in started:
        if server.launcher.poll() is None:
            server.stop()


@pytest.fixture(scope="module")
def default_server(start_server: StartServer) -> Iterator[Server]:
    """The built-in default model, for all tests of a module."""
    server = start_server(None, "--", "--ctx-size", "4096", "--parallel", "2")
    yield server
    assert server.stop() == 0
