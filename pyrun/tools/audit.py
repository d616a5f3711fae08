"""The audit log: one line of JSON for every call, also for those that were refused. For its owner alone."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any

FILE = "tools.jsonl"
MAX_BYTES = 50_000_000  # then the log becomes FILE.1, and the one that had that name goes
MAX_VALUE = 1_000
MAX_DEPTH = 20  # of values in values; what is deeper is cut, as what is longer
SECRET_HEADERS = ("authorization", "cookie", "key", "token", "secret")


class Audit:
    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE

    def write(self, tool: str, arguments: Any, outcome: str, seconds: float, detail: str = "") -> None:
        """Raises OSError where it cannot be written: a call that leaves no trace is not made."""
        entry = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "pid": os.getpid(),
            "tool": tool,
            "outcome": outcome,
            "seconds": round(seconds, 3),
            "arguments": _short(arguments),
            **({"detail": detail[:MAX_VALUE]} if detail else {}),
        }
        line = (json.dumps(entry, ensure_ascii=True, default=str) + "\n").encode()
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        while not self._append(line):
            pass  # the log became FILE.1 since it was opened: the line belongs into the new one

    def _append(self, line: bytes) -> bool:
        """One writer at a time, of all threads and programs; False where the open file is the log no more."""
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if not self._is_log(handle):
                return False
            size = os.fstat(handle).st_size
            if os.write(handle, line) < len(line):  # a disk that becomes full takes a part
                os.ftruncate(handle, size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if size + len(line) > MAX_BYTES:
                self.path.rename(self.path.with_name(f"{FILE}.1"))
            return True
        finally:
            os.close(handle)

    def _is_log(self, handle: int) -> bool:
        try:
            return os.path.samestat(os.fstat(handle), self.path.lstat())
        except FileNotFoundError:
            return False


def _short(value: Any, name: str = "", depth: int = 0) -> Any:
    if isinstance(value, dict | list) and depth == MAX_DEPTH:
        return "…"
    if isinstance(value, dict):
        return {str(k)[:MAX_VALUE]: _short(v, str(k), depth + 1) for k, v in list(value.items())[:50]}
    if isinstance(value, list):
        return [_short(v, depth=depth + 1) for v in value[:50]]
    if isinstance(value, str):
        if any(word in name.lower() for word in SECRET_HEADERS):
            return "***"
        return value if len(value) <= MAX_VALUE else f"{value[:MAX_VALUE]}… ({len(value):,} characters)"
    return value
