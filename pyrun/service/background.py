"""Keeps a server in the background, one for each port, and finds it again. It touches only what it started itself.

A small file beside the logs says which process that was: its number and when it began, because numbers come back.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from pyrun.errors import UserError
from pyrun.server.log import OWN_FILE, OWN_FOLDER, log_of
from pyrun.server.stop import LONGEST_SECONDS, QUIET_SECONDS

POLL_SECONDS = 0.2
CLOCK_SECONDS = 2.0  # the time that a process began is known no better than that, after the clock was set


@dataclass(frozen=True)
class Started:
    port: int
    pid: int
    began: float  # seconds since 1970
    url: str
    log: str  # what the launcher says
    server_log: str  # what llama-server says

    def process(self) -> psutil.Process | None:
        """None where it has ended, and perhaps another one has its number."""
        try:
            process = psutil.Process(self.pid)
            is_it = abs(process.create_time() - self.began) < CLOCK_SECONDS
            return process if is_it and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.Error:
            return None


def start(command: Sequence[str], logs: Path, port: int, url: str) -> Started:
    """Starts the launcher apart from this terminal. Whether it becomes ready is for the caller to wait for."""
    running = find(logs, port)
    if running is not None:
        raise UserError(
            f"a server runs at {running.url} already (pid {running.pid})",
            f"`llama-run stop --port {port}` stops it; another one needs another --port",
        )
    log = logs / f"launcher-{port}.log"
    try:
        logs.mkdir(mode=OWN_FOLDER, parents=True, exist_ok=True)
        with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, OWN_FILE), "wb") as output:
            pid = _spawn(command, output.fileno())
        started = Started(port, pid, psutil.Process(pid).create_time(), url, str(log), str(log_of(logs, port)))
        _write(_file(logs, port), started)
    except OSError as error:
        what = error.filename or command[0]
        raise UserError(f"cannot use {what}: {error.strerror}", "check who owns it, and the disk") from error
    return started


def _spawn(command: Sequence[str], output: int) -> int:
    """In a session of its own, and not as a child that somebody has to look after."""
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, output, 1),
        (os.POSIX_SPAWN_DUP2, output, 2),
    ]
    return os.posix_spawn(
        command[0],
        list(command),
        os.environ,
        file_actions=actions,
        setsid=True,
        setsigdef=[signal.SIGINT, signal.SIGPIPE],
    )


def find(logs: Path, port: int) -> Started | None:
    """The server of a port, if it still runs."""
    started = _read(_file(logs, port))
    return started if started is not None and started.process() is not None else None


def find_all(logs: Path) -> list[Started]:
    known = (_read(file) for file in sorted(logs.glob("started-*.json")))
    return sorted((one for one in known if one is not None and one.process()), key=lambda one: one.port)


def stop(logs: Path, started: Started) -> None:
    """Waits as long as the launcher may take to save; it kills nothing."""
    process = started.process()
    if process is not None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(psutil.NoSuchProcess):
            deadline = time.monotonic() + LONGEST_SECONDS + QUIET_SECONDS
            while started.process() is not None:
                if time.monotonic() > deadline:
                    raise UserError(
                        f"pid {started.pid} has not ended after {LONGEST_SECONDS + QUIET_SECONDS:.0f} s",
                        f"{started.log} says what it does; `kill -9 {started.pid}` ends it, and then its server saves",
                    )
                time.sleep(POLL_SECONDS)
    _file(logs, started.port).unlink(missing_ok=True)


def _file(logs: Path, port: int) -> Path:
    return logs / f"started-{port}.json"


def _write(file: Path, started: Started) -> None:
    temporary = file.with_suffix(f".new-{os.getpid()}")
    temporary.write_text(json.dumps(asdict(started), indent=1) + "\n", encoding="utf-8")
    temporary.chmod(OWN_FILE)
    temporary.replace(file)


def _read(file: Path) -> Started | None:
    """None for a file that somebody has edited into something else."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        found = Started(**content)
    except (OSError, ValueError, TypeError):
        return None
    kinds = {"port": int, "pid": int, "began": float, "url": str, "log": str, "server_log": str}
    return found if all(isinstance(getattr(found, name), kind) for name, kind in kinds.items()) else None
