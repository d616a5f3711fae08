"""One program or thread at a time in a folder: the kernel frees the lock of a process that has died."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from pyrun import console


@contextmanager
def alone_in(folder: Path, waiting: str = "") -> Iterator[None]:
    """Waits for whoever is in the folder, which is there; `waiting` is told meanwhile."""
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with console.waiting(waiting) if waiting else nullcontext():
                fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)
