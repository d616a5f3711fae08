"""Measures what the machine allows at best: how fast it reads, copies, evaluates. A warm start is held against that.

The limit of a restore is the time to read its bytes in one go, and to evaluate what is new:

    limit = bytes read / read speed + max(new tokens / prefill speed, 1 / decode speed)

The last term is that evaluating even one token takes a pass through all weights, as decoding does.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.records import Limits, ReadingBeside
from benchmarks.stats import summarise
from pyrun import console
from pyrun.errors import UserError

CHUNK = 4 << 20
LEAST_BYTES, MOST_BYTES = 64 << 20, 1 << 30
ROUNDS = 3
READERS = 4
RESIDENT = 0.02  # a file of whose pages less than this part is in RAM counts as dropped


def eval_ms(n_tokens: int, prefill: float, decode: float) -> float:
    return max(n_tokens / prefill, 1 / decode) * 1000


def restore_limit_ms(n_bytes: float, bytes_per_s: float, n_tokens: int, prefill: float, decode: float) -> float:
    return n_bytes / bytes_per_s * 1000 + eval_ms(n_tokens, prefill, decode)


def forget(paths: Iterable[Path]) -> bool:
    """Takes files out of the page cache, as a restart of the machine would, and says whether they are really gone."""
    os.sync()
    files = [path for path in paths if path.is_file() and path.stat().st_size]
    if hasattr(os, "posix_fadvise"):
        for path in files:
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if all(resident_part(path) < RESIDENT for path in files):
        return True
    try:  # root may drop everything
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        return False
    return all(resident_part(path) < RESIDENT for path in files)


def resident_part(path: Path) -> float:
    """Says how much of a file is in the page cache. Where the system does not tell, all of it may be."""
    size = path.stat().st_size
    pages = -(-size // mmap.PAGESIZE)
    seen = (ctypes.c_ubyte * pages)()
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as m,
    ):
        where = ctypes.c_char.from_buffer(m)
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            done = libc.mincore(ctypes.c_void_p(ctypes.addressof(where)), ctypes.c_size_t(size), seen)
        finally:
            del where  # the mapping cannot be closed while something points into it
    return sum(byte & 1 for byte in seen) / pages if done == 0 else 1.0


def measure_reading(folder: Path, n_bytes: int) -> ReadingBeside:
    """Reads files like those of the cache in order, by one reader and by several at once.

    Each file is read once, as a restore reads what was written before a restart: a disk, or the host of a virtual one,
    may hand out faster what it has handed out before.
    """
    size = max(LEAST_BYTES, min(MOST_BYTES, n_bytes)) // CHUNK * CHUNK
    dropped = True
    speeds: dict[int, list[float]] = {1: [], READERS: []}
    for _ in range(ROUNDS):
        for readers, measured in speeds.items():
            with scratch_file(folder, size) as path:
                dropped = forget([path]) and dropped
                measured.append(read_speed(path, readers))
    return {
        "bytes": size,
        "page_cache": "dropped" if dropped else "kept",
        "sequential_bytes_per_s": summarise(speeds[1]),
        "parallel_bytes_per_s": summarise(speeds[READERS]),
        "readers": READERS,
    }


@contextlib.contextmanager
def scratch_file(folder: Path, size: int) -> Iterator[Path]:
    """Makes a file that is on the disk, of bytes that no disk and no file system can make less of."""
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(tempfile.NamedTemporaryFile(dir=folder, prefix=".speed-", buffering=0))
            _fill(file.fileno(), size)
        except OSError as error:
            raise UserError(
                f"cannot write {console.size(size)} to {folder}, to see how fast it is read: {error.strerror or error}",
                "make room there, or measure another disk: --cache-folder",
            ) from error
        yield Path(file.name)


def _fill(fd: int, size: int) -> None:
    import numpy as np  # plotting brings it, and only this needs it

    noise = np.frombuffer(os.urandom(CHUNK), dtype=np.uint64)
    for _ in range(max(1, size // CHUNK)):
        left = memoryview((noise ^ np.frombuffer(os.urandom(8), dtype=np.uint64)).tobytes())
        while left:
            left = left[os.write(fd, left) :]
    os.fsync(fd)


def new_buffer() -> bytearray:
    """It is written to, so that its memory is there before a clock starts: a program that reads much has it already."""
    return bytearray(b"\xff") * CHUNK


def read_part(path: Path, offset: int, size: int, buffer: bytearray | None = None) -> float:
    """Reads a part of a file in order, and gives the seconds that it takes."""
    buffer = buffer or new_buffer()
    started = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        left = size
        while left > 0:
            left -= file.readinto(memoryview(buffer)[: min(CHUNK, left)]) or left
    return time.perf_counter() - started


def read_speed(path: Path, readers: int) -> float:
    size = path.stat().st_size
    part = size // readers
    buffers = [new_buffer() for _ in range(readers)]
    started = time.perf_counter()
    with ThreadPoolExecutor(readers) as pool:
        list(pool.map(lambda number: read_part(path, number * part, part, buffers[number]), range(readers)))
    return size / (time.perf_counter() - started)


def speed_of(limits: Limits) -> float:
    """A restore is measured against the bytes a second that one reader gets in order."""
    return limits["reading"]["sequential_bytes_per_s"]["median"]
