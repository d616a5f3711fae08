"""Writing an agent's settings: whole or not at all, and with the file of before beside it."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pyrun.agents.merge import UnmergeableError, merge
from pyrun.agents.setup import ConfigFile
from pyrun.errors import UserError

PRIVATE = 0o600  # a key may stand in it


@dataclass(frozen=True)
class Change:
    """What would become of a file; `problem` says why it must not be touched."""

    path: Path
    before: str | None
    after: str
    problem: str | None = None

    @property
    def is_needed(self) -> bool:
        return self.problem is None and self.before != self.after


def plan(wanted: ConfigFile) -> Change:
    """Reads the file and changes nothing."""
    try:
        before = wanted.path.read_text(encoding="utf-8")
    except FileNotFoundError:
        before = None
    except (OSError, UnicodeDecodeError) as error:
        return Change(wanted.path, None, "", f"cannot be read: {error}")
    try:
        return Change(wanted.path, before, merge(before or "", wanted))
    except UnmergeableError as error:
        return Change(wanted.path, before, "", str(error))


def apply(change: Change) -> Path | None:
    """Writes the file, and returns where the one of before is kept."""
    # A link, as dotfile managers make them, stays one: what it points to is written.
    path = Path(os.path.realpath(change.path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = None
        if change.before is not None:
            kept = _spare(path)
            shutil.copy2(path, kept)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(change.after)
                file.flush()
                os.fsync(file.fileno())
            Path(name).chmod(path.stat().st_mode & 0o777 if change.before is not None else PRIVATE)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UserError(
            f"{change.path} cannot be written: {error.strerror}", "--print shows what belongs there"
        ) from error
    return kept


def _spare(path: Path) -> Path:
    """A name beside the file that is free: FILE.before-llama-run, then with a number."""
    first = path.with_name(f"{path.name}.before-llama-run")
    names = (first, *(first.with_name(f"{first.name}-{number}") for number in range(2, 1000)))
    return next(name for name in names if not name.exists())
