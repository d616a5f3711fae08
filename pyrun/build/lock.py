"""Lets one build run at a time: the lock says who holds it and goes with its process."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyrun import console
from pyrun.errors import UserError


@contextmanager
def build_lock(path: Path) -> Iterator[None]:
    """Waits for another build of the same checkout, and says whom for. The kernel frees the lock of a dead process."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        opened = path.open("a+")
    except OSError as error:
        raise UserError(f"cannot write to {path.parent}: {error.strerror}", "check who owns it") from error
    with opened as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            with console.waiting(f"waiting for another build to end (pid {holder})"):
                fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
