"""Measures how fast the disk of the cache folder is, in about half a second at most."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

CHUNK = 4 << 20
MOST_BYTES = 128 << 20  # an SSD wears
WRITE_SECONDS = 0.15
READ_SECONDS = 0.1


@dataclass(frozen=True)
class DiskSpeed:
    write: float  # bytes a second that arrive on the disk itself
    read: float | None  # None where the system cannot be asked to forget what it has in RAM


def measure_disk(folder: Path) -> DiskSpeed:
    """Writes and reads a file in the folder, which must be there, and leaves nothing behind."""
    data = os.urandom(CHUNK)  # some disks and file systems compress
    with tempfile.TemporaryFile(dir=folder, prefix=".speed-") as file:
        number = file.fileno()
        started = time.perf_counter()
        written = 0
        while written < MOST_BYTES and (not written or time.perf_counter() - started < WRITE_SECONDS):
            os.write(number, data)
            os.fsync(number)
            written += CHUNK
        write = written / (time.perf_counter() - started)
        if not hasattr(os, "posix_fadvise"):
            return DiskSpeed(write, None)
        os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
        os.lseek(number, 0, os.SEEK_SET)
        started = time.perf_counter()
        got = 0
        while time.perf_counter() - started < READ_SECONDS:
            block = os.read(number, CHUNK)
            if not block:
                break
            got += len(block)
        return DiskSpeed(write, got / max(time.perf_counter() - started, 1e-9))
