"""Downloads files of a repository into models/, so that nothing unfinished or damaged ever looks like a model.

A file arrives as `NAME.<start of checksum>.part` beside its place, is compared with the hub's size and checksum, and
is renamed when everything that belongs to it has arrived: the first part of a split set comes last, because it stands
for the set. An interrupted download leaves its .part files, and the next one goes on there.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pyrun import console
from pyrun.errors import UserError
from pyrun.home import Home
from pyrun.models.hub import Hub, HubTrouble, RemoteFile, Repository

PART_SUFFIX = ".part"
TRIES = 6  # so many in a row may bring nothing
LONGEST_PAUSE = 60.0
# Stores of files do not hand out more than some 50 GB in one piece.
SEGMENT = 16 << 30
BLOCK = 1 << 20


class Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


@dataclass(frozen=True)
class Item:
    """One file: where it belongs, and what of it is there."""

    file: RemoteFile
    target: Path
    is_there: bool
    n_arrived: int  # so many bytes are in the .part file

    @property
    def part(self) -> Path:
        digest = self.file.sha256 or self.file.git_oid or "unchecked"
        return self.target.with_name(f"{self.target.name}.{digest[:12]}{PART_SUFFIX}")

    @property
    def n_missing(self) -> int:
        return 0 if self.is_there else self.file.size - self.n_arrived


@dataclass(frozen=True)
class Plan:
    repository: Repository
    folder: Path
    items: tuple[Item, ...]

    @property
    def missing(self) -> list[Item]:
        return [item for item in self.items if not item.is_there]

    @property
    def n_missing(self) -> int:
        return sum(item.n_missing for item in self.items)

    @property
    def n_arrived(self) -> int:
        return sum(item.n_arrived for item in self.missing)


def folder_of(home: Home, repository: Repository) -> Path:
    """Each repository has a folder: many of them use the same names for their files."""
    return home.models.joinpath(*repository.id.split("/"))


@contextmanager
def download_lock(folder: Path) -> Iterator[None]:
    """Only one download goes into a folder at a time. The kernel frees the lock of a dead process."""
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".download.lock").open("a+")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise UserError(
                f"another llama-run is downloading into {folder} (pid {holder})", "wait for it, or stop it"
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def make_plan(home: Home, repository: Repository, files: Sequence[RemoteFile]) -> Plan:
    """Looks at what is there, and throws away what was begun of an older version.

    A file of the right size is read and compared, so that damage does not stay.
    """
    folder = folder_of(home, repository)
    targets = [folder.joinpath(*file.path.split("/")) for file in files]
    same_size = [target.is_file() and target.stat().st_size == f.size for f, target in zip(files, targets, strict=True)]
    total = sum(file.size for file, same in zip(files, same_size, strict=True) if same)
    items = []
    with _progress("checking what is there", total) as progress:
        for file, target, same in zip(files, targets, same_size, strict=True):
            is_there = same and _is_sound(file, target, progress.advance)
            if target.is_file() and not is_there:
                console.say(f"{target} is not what the hub has now: it is replaced when the new one is complete")
            item = Item(file, target, is_there, 0)
            _remove_outdated(item)
            n_arrived = item.part.stat().st_size if item.part.is_file() and not is_there else 0
            items.append(Item(file, target, is_there, min(n_arrived, file.size)))
    return Plan(repository, folder, tuple(items))


def check_space(plan: Plan) -> None:
    free = shutil.disk_usage(_existing(plan.folder)).free
    if plan.n_missing > free:
        raise UserError(
            f"{console.size(plan.n_missing)} are missing, {console.size(free)} are free on the disk of {plan.folder}",
            f"free {console.size(plan.n_missing - free)} or take a smaller quantisation; `llama-run cache stats` shows "
            "what stored prompts take",
        )


def carry_out(hub: Hub, plan: Plan, pause: Callable[[float], None] = time.sleep) -> None:
    """Downloads what is missing and puts it in place. Whatever stops it, what has arrived is kept."""
    missing = plan.missing
    with _progress(plan.repository.id, plan.n_missing + plan.n_arrived, plan.n_arrived) as progress:
        for number, item in enumerate(missing, 1):
            count = f" ({number} of {len(missing)})" if len(missing) > 1 else ""
            with _writing(item.target):
                item.target.parent.mkdir(parents=True, exist_ok=True)
                progress.rename(f"{item.target.name}{count}")
                _fetch(hub, plan.repository, item, progress, pause)
    for item in reversed(missing):
        with _writing(item.target):
            item.part.replace(item.target)
            _sync_folder(item.target.parent)


def _fetch(
    hub: Hub, repository: Repository, item: Item, progress: console.Progress, pause: Callable[[float], None]
) -> None:
    file, failures = item.file, 0
    with item.part.open("a+b", buffering=BLOCK) as out:
        out.truncate(item.n_arrived)
        digest = _new_hash(file)
        out.seek(0)
        while block := out.read(BLOCK):
            digest.update(block)
        at = item.n_arrived
        while at < file.size:
            before = at
            try:
                with hub.open(repository, file, at, min(file.size, at + SEGMENT)) as stream:
                    if stream.start != at:
                        progress.advance(-at)
                        out.truncate(0)
                        at, digest = 0, _new_hash(file)
                    for chunk in stream.chunks:
                        if at + len(chunk) > file.size:
                            raise _wrong(item, f"more than {file.size:,} bytes", f"{file.size:,} bytes")
                        out.write(chunk)
                        digest.update(chunk)
                        at += len(chunk)
                        progress.advance(len(chunk))
                if at <= before:
                    raise HubTrouble(f"the hub sends nothing more of {file.path}")
                failures = 0
            except HubTrouble as trouble:
                failures = 1 if at > before else failures + 1
                if failures >= TRIES:
                    raise
                seconds = min(LONGEST_PAUSE, trouble.retry_after or 2.0 ** (failures - 1))
                console.say(f"{trouble.message}; going on at {console.size(at)} in {console.duration(seconds)}")
                pause(seconds)
        out.flush()
        os.fsync(out.fileno())
    expected = file.sha256 or file.git_oid
    if expected is None:
        console.say(f"note: the hub tells no checksum of {file.path}; only its size was compared")
    elif digest.hexdigest() != expected:
        raise _wrong(item, f"checksum {digest.hexdigest()}", expected)


def _wrong(item: Item, found: str, expected: str) -> UserError:
    item.part.unlink(missing_ok=True)
    return UserError(
        f"{item.file.path} arrived damaged, and was deleted\n  expected {expected}\n  found    {found}",
        "run again to download it anew; if it happens twice, something on the way changes files: try another network",
    )


def _new_hash(file: RemoteFile) -> Hash:
    if file.sha256 is not None:
        return hashlib.sha256()
    return hashlib.sha1(f"blob {file.size}\0".encode(), usedforsecurity=False)


def _is_sound(file: RemoteFile, path: Path, advance: Callable[[int], None]) -> bool:
    expected = file.sha256 or file.git_oid
    digest = _new_hash(file)
    with path.open("rb") as stored:
        while block := stored.read(BLOCK):
            digest.update(block)
            advance(len(block))
    return expected is None or digest.hexdigest() == expected


def _remove_outdated(item: Item) -> None:
    """What was begun of another version of the same file can never be finished."""
    for path in item.target.parent.glob(f"{glob.escape(item.target.name)}.*{PART_SUFFIX}"):
        if path != item.part:
            path.unlink(missing_ok=True)


def _existing(path: Path) -> Path:
    return path if path.exists() else _existing(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _progress(label: str, total: int, done: int = 0) -> Iterator[console.Progress]:
    progress = console.Progress(label, console.BYTES, total, done)
    try:
        yield progress
    finally:
        progress.close()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        hint = "check who owns the folder"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            hint = "free some disk space and run the same command again: it goes on where it stopped"
        raise UserError(f"cannot write {path}: {error.strerror or error}", hint) from error
