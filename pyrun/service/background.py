"""Keeps a server in the background, one for each port, and finds it again. It touches only what it started itself.

A small file beside the logs says which process that was: its number and when it began, because numbers come back. Who
writes or removes it holds the folder's lock: of two starts at once, one finds the other's server.
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
from pyrun.folder_lock import alone_in
from pyrun.server.log import OWN_FILE, OWN_FOLDER, log_of
from pyrun.server.stop import LONGEST_SECONDS, QUIET_SECONDS

POLL_SECONDS = 0.2
CLOCK_SECONDS = 2.0  # the time that a process began is known no better than that, if the clock is not set meanwhile


@dataclass(frozen=True)
class Started:
    port: int
    pid: int
    began: float  # seconds since 1970
    url: str
    log: str  # what the launcher says
    server_log: str  # what llama-server says
    mark: str = ""  # what tells the process from others, whatever the clock does; empty where there is nothing

    def process(self) -> psutil.Process | None:
        """None where it has ended, and perhaps another one has its number."""
        try:
            process = psutil.Process(self.pid)
            by_clock = abs(process.create_time() - self.began) < CLOCK_SECONDS
            is_it = _mark_of(self.pid) == self.mark if self.mark else by_clock
            return process if is_it and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.Error:
            return None


def start(command: Sequence[str], logs: Path, port: int, url: str) -> Started:
    """Starts the launcher apart from this terminal. Whether it becomes ready is for the caller to wait for."""
    log = logs / f"launcher-{port}.log"
    try:
        logs.mkdir(mode=OWN_FOLDER, parents=True, exist_ok=True)
        with alone_in(logs):
            running = find(logs, port)
            if running is not None:
                raise UserError(
                    f"a server runs at {running.url} already (pid {running.pid})",
                    f"`llama-run stop --port {port}` stops it; another one needs another --port",
                )
            with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, OWN_FILE), "wb") as output:
                pid = _spawn(command, output.fileno())
            began, mark = psutil.Process(pid).create_time(), _mark_of(pid)
            started = Started(port, pid, began, url, str(log), str(log_of(logs, port)), mark)
            _write(_file(logs, port), started)
    except OSError as error:
        what = error.filename or command[0]
        raise UserError(f"cannot use {what}: {error.strerror}", "check who owns it, and the disk") from error
    return started


def _mark_of(pid: int) -> str:
    """Linux counts a process's beginning from that of the machine, and names that one, too."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8")
        return f"{boot.strip()} {told.rpartition(')')[2].split()[19]}"
    except (OSError, IndexError):
        return ""


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
    with alone_in(logs):
        if _read(_file(logs, started.port)) == started:  # else another one was started there meanwhile
            _file(logs, started.port).unlink()


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
    kinds = {"port": int, "pid": int, "began": float, "url": str, "log": str, "server_log": str, "mark": str}
    return found if all(isinstance(getattr(found, name), kind) for name, kind in kinds.items()) else None
