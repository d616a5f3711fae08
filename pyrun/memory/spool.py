"""The spool: where whoever drops messages from a history leaves them for the archive. docs/formats.md has the format.

A file is written under another name, synced and renamed, and never changed after that. So a file that has its name is
complete, whatever crashed, and any number of writers and readers need no lock.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VERSION = 1
MAX_FILE_BYTES = 64 << 20
SPOOL = "spool"  # its folder in that of the memory
MAX_SPOOL_BYTES = 1 << 30
DAMAGED = "damaged"
USER_NAME = re.compile(r"[0-9a-f]{32}")
FILE_NAME = re.compile(r"([0-9a-f]{16})-[0-9]{13}-[0-9a-f]{16}\.spool")
TEMP_PREFIX = "tmp-"


class SpoolFullError(Exception):
    """Nothing was written: the spool has as much as it may hold, and nobody takes it in."""


@dataclass(frozen=True)
class Record:
    """A message that left a history; `seq` is its place there."""

    seq: int
    message: dict[str, Any]
    digest: str = ""  # of its line, once it was read


@dataclass
class SpoolFile:
    """What is sound in a file, and what is wrong with the rest."""

    user: str
    conversation: str
    created_ms: int = 0
    records: list[Record] = field(default_factory=list)
    damage: str | None = None


def digest(line: bytes) -> str:
    return hashlib.blake2b(line, digest_size=16).hexdigest()


def write_spool(spool: Path, user: str, conversation: str, records: Sequence[Record]) -> Path:
    """Leaves messages of one conversation. `user` is the hex of the user's key, `conversation` 16 hex digits."""
    created = int(time.time() * 1000)
    header = {"created": created, "conversation": conversation, "n": len(records), "spool": VERSION, "user": user}
    data = b"".join(_line(entry) for entry in (header, *({"message": r.message, "seq": r.seq} for r in records)))
    if len(data) > MAX_FILE_BYTES or _size(spool) + len(data) > MAX_SPOOL_BYTES:
        raise SpoolFullError
    folder = spool / user
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    number = secrets.token_hex(8)
    temporary = folder / f"{TEMP_PREFIX}{number}"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    path = folder / f"{conversation}-{created:013d}-{number}.spool"
    temporary.rename(path)
    _sync_folder(folder)
    return path


def _size(spool: Path) -> int:
    size = 0
    for path in files(spool):
        with suppress(FileNotFoundError):  # a reader has it
            size += path.stat().st_size
    return size


def _line(entry: dict[str, Any]) -> bytes:
    text = json.dumps(entry, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return f"{digest(text)} ".encode() + text + b"\n"


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def files(spool: Path) -> Iterator[Path]:
    """The complete files of all users, in a fixed order."""
    for folder in folders(spool):
        yield from files_in(folder)


def files_in(folder: Path) -> list[Path]:
    """The complete files of one user."""
    return [path for path in _entries(folder) if FILE_NAME.fullmatch(path.name)]


def leftovers_in(folder: Path) -> list[Path]:
    """What writers of this user's files that were killed left unfinished."""
    return [path for path in _entries(folder) if path.name.startswith(TEMP_PREFIX)]


def folders(spool: Path) -> list[Path]:
    """One for each user."""
    return [path for path in _entries(spool) if USER_NAME.fullmatch(path.name) and not path.is_symlink()]


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def read_spool(path: Path) -> SpoolFile:
    """Reads a file and believes none of it. Raises OSError where it cannot be read now, which is no damage:
    FileNotFoundError where another reader was faster."""
    name = FILE_NAME.fullmatch(path.name)
    found = SpoolFile(path.parent.name, name[1] if name else "")
    info = path.lstat()
    if not stat.S_ISREG(info.st_mode) or info.st_size > MAX_FILE_BYTES:
        found.damage = "it is no plain file of at most 64 MiB"
        return found
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        lines = file.read(MAX_FILE_BYTES).split(b"\n")
    header = _entry(lines[0])
    if header is None or header[1].get("spool") != VERSION:
        found.damage = "its first line is no header of version 1"
        return found
    told = header[1]
    if told.get("user") != found.user or told.get("conversation") != found.conversation:
        found.damage = "it lies in the wrong place"
        return found
    created = told.get("created")
    found.created_ms = created if isinstance(created, int) and 0 <= created < 2**53 else int(info.st_mtime * 1000)
    for line in lines[1:-1]:
        entry = _entry(line)
        record = _record(*entry) if entry else None
        if record:
            found.records.append(record)
    n_sound = len(found.records)
    if n_sound != told.get("n") or n_sound != len(lines) - 2 or lines[-1] != b"":
        found.damage = f"{n_sound} of {told.get('n')} messages are sound, in {len(lines) - 1} lines"
    return found


def _entry(line: bytes) -> tuple[str, dict[str, Any]] | None:
    told, _, text = line.partition(b" ")
    if told != digest(text).encode():
        return None
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return (told.decode(), entry) if isinstance(entry, dict) else None


def _record(told: str, entry: dict[str, Any]) -> Record | None:
    seq, message = entry.get("seq"), entry.get("message")
    if isinstance(seq, int) and 0 <= seq < 2**53 and isinstance(message, dict):
        return Record(seq, message, told)
    return None
