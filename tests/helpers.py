"""Small things that several tests need."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import time
from collections.abc import Callable
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]


def free_port() -> int:
    """One below those that connections are given by the system: else one of them may have it before the server does."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])  # those that run beside each other draw apart
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    draw = random.SystemRandom()
    while True:
        with socket.socket() as probe:
            port = draw.randrange(10_000 + worker, 32_000, workers)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def wait_until(condition: Callable[[], bool], seconds: float, what: str, said: Callable[[], str] = lambda: "") -> None:
    """`said` gives what a process has written by the time that this fails."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}\n{said()}"
        time.sleep(0.05)


def only_server(launcher: int) -> int:
    """The pid of its one llama-server. What else it has just forked bears its own name, for a moment."""
    found: list[int] = []

    def is_there() -> bool:
        found.clear()
        for child in psutil.Process(launcher).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                found.extend([child.pid] if child.name() == "llama-server" else [])
        return bool(found)

    wait_until(is_there, 10, "the launcher has a llama-server")
    [pid] = found
    return pid


def children_told(word: str) -> list[psutil.Process]:
    """Those that this process started, and theirs, with that word in their command. One that has ended has none."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [child] if word in child.cmdline() else []
    return found


def is_running(pid: int) -> bool:
    """Whether the process is there and not a zombie that waits for its parent."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
