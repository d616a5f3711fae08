"""Runs one command and ends with it all that it started: `python keeper.py SHELL-COMMAND`, as a program of its own.

On Linux, what a command leaves behind (also in a session of its own) becomes a child of the keeper and is killed when
the command ends, when the keeper is told to end, and when the tool server is gone. Elsewhere, the command's group is.
Where the keeper itself is killed, the tool server ends what is left of its session.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
GRACE_SECONDS = 2.0
NOT_STARTED = 127


def main() -> int:
    parent = os.getppid()
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        return NOT_STARTED  # the tool server went before its death could be noticed
    ended = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)  # not a session of its own: in the keeper's it is found when the keeper is killed
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        with suppress(OSError):
            os.execv("/bin/sh", ["/bin/sh", "-c", sys.argv[1]])
        os._exit(NOT_STARTED)
    status = _wait(child, ended)
    if status is None:
        _signal_group(child, signal.SIGTERM)
        status = _wait(child, [], time.monotonic() + GRACE_SECONDS)
    _kill_all(child)
    code = os.waitstatus_to_exitcode(status) if status is not None else -signal.SIGKILL
    return code if code >= 0 else 128 - code  # as a shell tells it


def _wait(child: int, ended: list[bool], deadline: float | None = None) -> int | None:
    """The child's status; None if the keeper is told to end, or the time is over."""
    pause = 0.001
    while not ended and (deadline is None or time.monotonic() < deadline):
        with suppress(ChildProcessError):
            found, status = os.waitpid(child, os.WNOHANG)
            if found:
                return status
        time.sleep(pause)
        pause = min(pause * 2, 0.02)
    return None


def _signal_group(child: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child, number)


def _kill_all(child: int) -> None:
    """Until nobody is left: whoever forks while it is killed leaves children that are found in the next round."""
    _signal_group(child, signal.SIGKILL)
    while True:
        for pid in _children():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.005)


def _children() -> list[int]:
    """Of the keeper, in /proc: the orphans of those that are killed come to it in turn."""
    own = str(os.getpid())
    found = []
    with suppress(FileNotFoundError):
        for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 (this program loads as little as it can)
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                if file.read().rpartition(b")")[2].split()[1].decode() == own:
                    found.append(int(name))
    return found


if __name__ == "__main__":
    sys.exit(main())
