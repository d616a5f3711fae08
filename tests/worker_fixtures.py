"""Workers that hold parts of a model: upstream's rpc-server, at addresses of this machine, by real TCP."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from backend import BACKEND, require_backend, server_environment
from helpers import ROOT, free_port, wait_until

from pyrun.home import Home
from pyrun.workers.ask import WorkerError, ask_worker
from pyrun.workers.endpoint import Endpoint


@dataclass
class WorkerProcess:
    endpoint: Endpoint
    output: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it where it was before."""
        host, port = self.endpoint.host, str(self.endpoint.port)
        command = [str(Home(ROOT).worker_binary(BACKEND)), "--host", host, "--port", port, "--threads", "1"]
        environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"} | server_environment()
        with self.output.open("ab") as file:
            self.process = subprocess.Popen(
                command, stdout=file, stderr=subprocess.STDOUT, env=environment, restore_signals=False
            )
        wait_until(self._answers, 30, "the worker answers")

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def _answers(self) -> bool:
        try:
            ask_worker(self.endpoint, 1.0)
        except WorkerError:
            return False
        return True


def rpc_flags(workers: list[WorkerProcess]) -> list[str]:
    return ["--rpc", ",".join(str(worker.endpoint) for worker in workers)]


def start_workers(folder: Path, count: int = 2) -> list[WorkerProcess]:
    """Each at an address of its own: 127.0.0.1, 127.0.0.2, ..."""
    started = []
    for n in range(count):
        started.append(WorkerProcess(Endpoint(f"127.0.0.{n + 1}", free_port()), folder / f"worker-{n}"))
        started[-1].start()
    return started


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[list[WorkerProcess]]:
    """Two of them."""
    require_backend()
    started = start_workers(tmp_path)
    yield started
    for worker in started:
        worker.kill()
