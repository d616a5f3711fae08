"""Keeps the server's log. It holds words of prompts, so it is its owner's alone; a few lines are for a person to see.

A log is in use as long as the server that writes it lives: the lock on it is inherited with the open file, and the
kernel gives it back when the last process that has it is gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from pyrun.errors import UserError

OWN_FOLDER, OWN_FILE = 0o700, 0o600
# The server says this when the cache stops keeping state, and when it goes on; colours and the time may stand before.
NOTICE = re.compile(r"(?:[\d.]+ )?(?:W )?cache: (not storing \(\w+\): .+|storing again)")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def log_of(folder: Path, port: int) -> Path:
    return folder / f"server-{port}.log"


def logs_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("server-*.log*") if path.is_file())


def rotate(log: Path) -> None:
    """Keeps the run before as `.log.1`."""
    if _is_in_use(log, if_unknown=False):
        raise UserError(
            f"{log} is in use: a server of this port still runs, perhaps at another address, or saves its state",
            "stop it, or wait until it has ended, or give this one another --port",
        )
    for old in logs_in(log.parent):
        with contextlib.suppress(OSError):  # it is another user's, whom it is left to, or gone
            old.chmod(OWN_FILE)  # earlier versions left them open to others
    with _explained(log):
        if log.exists():
            log.replace(log.with_suffix(".log.1"))


def open_log(log: Path) -> BinaryIO:
    """Opens it, to write at its end."""
    with _explained(log):
        log.parent.mkdir(mode=OWN_FOLDER, parents=True, exist_ok=True)
        if log.parent.stat().st_uid == os.getuid():
            with contextlib.suppress(OSError):
                log.parent.chmod(OWN_FOLDER)  # earlier versions left it open to others
        file = os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, OWN_FILE), "ab")
    with contextlib.suppress(OSError):  # a file system may have no locks
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return file


@contextlib.contextmanager
def _explained(log: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {log}: {error.strerror}", "check the disk, and who owns the folder") from error


def idle_logs(folder: Path) -> list[Path]:
    """Finds those that no running server writes."""
    return [log for log in logs_in(folder) if not _is_in_use(log, if_unknown=True)]


def _is_in_use(log: Path, if_unknown: bool) -> bool:
    """`if_unknown` is the answer where it cannot be told, such as on a file system without locks."""
    try:
        with log.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return if_unknown
    return False


class Follower:
    """What a log says from now on."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._at = log.stat().st_size

    def notices(self) -> Iterator[str]:
        """Gives new lines about the cache that a person should see."""
        with contextlib.suppress(OSError), self._log.open("rb") as file:
            if os.fstat(file.fileno()).st_size < self._at:
                self._at = 0  # somebody emptied it
            file.seek(self._at)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # the rest is still to come
                self._at += len(line)
                if b"storing" in line and (found := NOTICE.fullmatch(_plain(line))):
                    yield found[1]


def _plain(line: bytes) -> str:
    return COLOUR.sub("", line.decode("utf-8", "replace")).strip()
