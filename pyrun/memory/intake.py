"""From the spool into the archive, each message exactly once, whatever is killed when.

A message is known by its user, its conversation, its place there and what it says. Messages are committed before their
file goes: whoever dies in between, or is beside another one, brings the same again, and it is known.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from pyrun.memory.query import clean
from pyrun.memory.recall import entry_key
from pyrun.memory.spool import DAMAGED, SpoolFile, files, leftovers, read_spool
from pyrun.memory.store import Entry, Memory
from pyrun.memory.text import message_text

ABANDONED_SECONDS = 3600  # after which an unfinished file is nobody's


@dataclass
class Taken:
    n_new: int = 0
    n_known: int = 0
    n_damaged: int = 0  # files


def take_in(memory: Memory) -> Taken:
    """Takes in all that lies in the spool now."""
    taken = Taken()
    for path in files(memory.spool):
        try:
            content = read_spool(path)
        except FileNotFoundError:
            continue  # another reader has it
        except OSError as error:
            content = SpoolFile(path.parent.name, "", damage=str(error.strerror))
        _archive(memory, content, taken)
        if content.damage is None:
            path.unlink(missing_ok=True)
        else:
            taken.n_damaged += 1
            _set_aside(memory.spool, path)
    _remove_abandoned(memory.spool)
    if taken.n_new:
        memory.prune()
    return taken


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
    try:
        path.rename(folder / f"{path.parent.name}-{path.name}")
    except FileNotFoundError:
        return  # another reader has it


def _remove_abandoned(spool: Path) -> None:
    for path in leftovers(spool):
        try:
            if time.time() - path.lstat().st_mtime > ABANDONED_SECONDS:
                path.unlink()
        except FileNotFoundError:
            continue
