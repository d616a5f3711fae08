"""Decides how long a server that was asked to end is waited for. The policy is pure: times in, decision out."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil

# A long batch has to end before the server sees the signal.
QUIET_SECONDS = 30.0
# Saving is worth waiting for, but not for ever: what is not on disk by then is evaluated again.
LONGEST_SECONDS = 120.0
# Whoever serves several models waits so long for each, and then ends it: it is waited for a little longer itself.
LONGEST_SECONDS_OF_SEVERAL = LONGEST_SECONDS + 10.0
# A person need not hear of it earlier.
MENTION_SECONDS = 2.0


def is_overdue(
    asked: float, last_write: float, now: float, quiet: float = QUIET_SECONDS, longest: float = LONGEST_SECONDS
) -> bool:
    """It is to be killed if it neither ended nor wrote for so long, or writes for longer than anyone wants to wait."""
    return now - max(asked, last_write) >= quiet or now - asked >= longest


class Writing:
    """Tells whether a process is writing to disk, or one that it started, as far as the system does."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._written = self._bytes()

    def is_seen(self) -> bool:
        """It wrote since the last call, or does just now. Where the system is silent, waiting is safer."""
        written = self._bytes()
        if written is None or written != self._written:
            self._written = written
            return True
        return self._waits_for_disk()

    def _processes(self) -> list[psutil.Process]:
        """Of several models, each is served by a process of its own, which saves its own state."""
        try:
            process = psutil.Process(self._pid)
            return [process, *process.children(recursive=True)]
        except psutil.Error:  # it is gone
            return []

    def _bytes(self) -> int | None:
        total = 0
        for process in self._processes():
            try:
                # Bytes count as they are handed over: what the disk is given is not counted on every file system.
                total += process.io_counters().write_chars
            except AttributeError:  # this system does not count them
                return None
            except psutil.Error:  # the process is gone, or not ours to look at
                continue
        return total

    def _waits_for_disk(self) -> bool:
        """Bytes are counted when they are handed to the kernel; an fsync that takes long adds none."""
        stats: list[str] = []
        for process in self._processes():
            with contextlib.suppress(OSError):
                stats += [task.read_text() for task in Path(f"/proc/{process.pid}/task").glob("*/stat")]
        return any(stat.rpartition(")")[2].split()[:1] == ["D"] for stat in stats)
