"""Writes an agent's settings, whole or not at all, and with the file of before beside it."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from pyrun.agents.merge import UnmergeableError, merge
from pyrun.agents.setup import ConfigFile
from pyrun.errors import UserError

PRIVATE = 0o600  # a key may stand in it
BY_HAND = "--print shows what belongs there"


@dataclass(frozen=True)
class Change:
    """What would become of a file; `problem` says why it must not be touched."""

    path: Path
    before: str | None
    after: str
    problem: str | None = None
    mode: int = PRIVATE  # the file will have it
    is_open: bool = False  # others can read it now, and should not

    @property
    def is_needed(self) -> bool:
        return self.problem is None and (self.before != self.after or self.is_open)


def plan(wanted: ConfigFile) -> Change:
    """Reads the file and changes nothing."""
    try:
        before = _read(wanted.path)
        mode = PRIVATE if before is None else wanted.path.stat().st_mode & 0o777
    except (OSError, UnicodeDecodeError) as error:
        return Change(wanted.path, None, "", f"cannot be read: {error}")
    private = mode & PRIVATE if wanted.secret else mode
    try:
        return Change(wanted.path, before, merge(before or "", wanted), mode=private, is_open=private != mode)
    except UnmergeableError as error:
        return Change(wanted.path, before, "", str(error))


def apply(change: Change) -> Path | None:
    """Writes the file, and returns where the one of before is kept, unless that was ours as well."""
    # A link, as dotfile managers make them, stays one: what it points to is written.
    path = Path(os.path.realpath(change.path))
    try:
        if _read(path) != change.before:
            raise UserError(f"{change.path} was changed by somebody else in the meantime", "run this again")
        if change.before == change.after:
            path.chmod(change.mode)
            return None
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = None
        if change.before is not None and not _is_ours(path, change.before):
            kept = _keep(path, change.mode)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
                file.write(change.after)
                file.flush()
                os.fsync(file.fileno())
            Path(name).chmod(change.mode)
            _sign(Path(name), change.after)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{change.path} cannot be written: {reason}", BY_HAND) from error
    return kept


def _read(path: Path) -> str | None:
    """Reads the text with its line ends, and gives None where there is no such file."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _keep(path: Path, mode: int) -> Path:
    """Leaves a copy beside the file, which no more people can read than the new one."""
    kept = _spare(path)
    try:
        kept.touch(mode=PRIVATE)
        shutil.copyfile(path, kept)
        shutil.copystat(path, kept)
        kept.chmod(mode)
    except BaseException:  # half a copy must not pass for the file of before
        kept.unlink(missing_ok=True)
        raise
    return kept


def _spare(path: Path) -> Path:
    """Finds a name beside the file that is free: FILE.before-llama-run, then with a number."""
    first = path.with_name(f"{path.name}.before-llama-run")
    names = (first, *(first.with_name(f"{first.name}-{number}") for number in range(2, 1000)))
    return next(name for name in names if not name.exists())


# A file that we wrote and nobody has changed since needs no copy, and its key should not get one. It is known by its
# time: the part below a second comes from what is in it.


def _sign(path: Path, text: str) -> None:
    at = int(time.time()) * 10**9 + _signature(text)
    os.utime(path, ns=(at, at))


def _is_ours(path: Path, text: str) -> bool:
    return path.stat().st_mtime_ns % 10**9 == _signature(text)


def _signature(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % 10**9
