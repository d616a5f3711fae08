"""From the spool into the archive, each message exactly once, whatever is killed when.

A message is known by its user, its conversation, its place there and what it says. Messages are committed before their
file goes: whoever dies in between, or is beside another one, brings the same again, and it is known.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyrun.errors import UserError
from pyrun.memory.query import clean
from pyrun.memory.recall import entry_key
from pyrun.memory.spool import DAMAGED, SpoolFile, files_in, folders, leftovers_in, read_spool
from pyrun.memory.store import Entry, Memory
from pyrun.memory.text import message_text

ABANDONED_SECONDS = 3600  # after which an unfinished file is nobody's


@dataclass
class Taken:
    n_new: int = 0
    n_known: int = 0
    n_damaged: int = 0  # files
    trouble: str = ""  # the first file that could not be read or removed, and why; the next intake tries it again


def take_in(memory: Memory) -> Taken:
    """Takes in all that lies in the spool now."""
    taken = Taken()
    try:
        memory.ensure_whole()
    except UserError as error:
        taken.trouble = str(error)
        return taken
    with _going_on(memory.spool, taken):
        for folder in folders(memory.spool):
            with _going_on(folder, taken):
                for path in files_in(folder):
                    with _going_on(path, taken):
                        _take(memory, path, taken)
                _remove_abandoned(folder)
    if taken.n_new:
        memory.prune()
    return taken


@contextmanager
def _going_on(path: Path, taken: Taken) -> Iterator[None]:
    """What the system refuses now it may give later: that ends neither the search that asked for the intake nor the
    intake of other files and users, and is no damage."""
    try:
        yield
    except FileNotFoundError:
        return  # another reader has it
    except OSError as error:
        taken.trouble = taken.trouble or f"{path}: {error.strerror}"


def _take(memory: Memory, path: Path, taken: Taken) -> None:
    content = read_spool(path)
    _archive(memory, content, taken)
    if content.damage is None:
        path.unlink(missing_ok=True)
    else:
        _set_aside(memory.spool, path)
        taken.n_damaged += 1


def _archive(memory: Memory, content: SpoolFile, taken: Taken) -> None:
    if not content.records:
        return
    with memory.writing():
        user = memory.ensure_user(content.user)
        for record in content.records:
            entry = Entry(
                kind="message",
                text=clean(message_text(record.message)),
                role=clean(str(record.message.get("role", ""))),
                conversation=content.conversation,
                seq=record.seq,
                at=content.created_ms,
                source="archive",
            )
            key = entry_key("message", content.conversation, record.digest)
            if not memory.was_removed(user, key) and memory.insert(user, entry, key):
                taken.n_new += 1
            else:
                taken.n_known += 1


def _set_aside(spool: Path, path: Path) -> None:
    folder = spool / DAMAGED
    folder.mkdir(mode=0o700, exist_ok=True)
    path.rename(folder / f"{path.parent.name}-{path.name}")


def _remove_abandoned(folder: Path) -> None:
    for path in leftovers_in(folder):
        try:
            if time.time() - path.lstat().st_mtime > ABANDONED_SECONDS:
                path.unlink()
        except FileNotFoundError:
            continue
