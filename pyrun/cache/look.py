"""Tells what is stored, and whether every byte of it is sound. Nothing here changes anything on disk."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyrun import _kernels
from pyrun.cache.folder import Model, Visited, bytes_on_disk, find_models, opened, visit
from pyrun.errors import UserError

HASH = re.compile(r"[0-9a-f]{4,16}")


@dataclass(frozen=True)
class Conversation:
    hash: str
    user: str | None  # the hash that stands for the user; the id itself is not stored
    turns: int
    tokens: int  # how many it has at the end of the newest turn
    bytes_own: int  # what removing it frees
    bytes_shared: int  # what other conversations need as well
    tier: str
    hits: int
    backend: str
    created_ms: int
    last_used_ms: int
    title: str = ""  # the user's first words
    ttl: str = "none"  # it is protected from eviction for so long after its last use
    protected: bool = False  # whether it is, now
    expire: str = "none"  # it is removed when nobody has used it for so long


@dataclass(frozen=True)
class Damage:
    path: str
    reason: str
    message: str


@dataclass(frozen=True)
class Listing:
    fingerprint: str
    bytes: int
    conversations: list[Conversation]
    damaged: int  # how many files are, as far as opening looks, which is not at every byte
    model: str | None = None  # the file's name, as far as a server has told whose state it is


@dataclass(frozen=True)
class Stats:
    fingerprint: str
    bytes: int
    conversations: int
    users: int
    turns: int
    pages: int
    page_files: int
    anchors: int
    hits: int  # a conversation went on from its own state so often; for a shared prefix nothing is kept on disk
    restores: int | None  # how many of both kinds the server made since its start; None where none is asked
    unfinished_files: int  # a save that was cut off left them
    unusable_files: int  # the beginning of their pages is missing
    quarantine_files: int
    quarantine_bytes: int
    unreadable: int  # the disk refused so many reads
    damaged: dict[str, int]  # how many files, by reason, as far as opening looks


@dataclass(frozen=True)
class CacheStats:
    cache: str
    bytes: int
    disk_free: int
    stored: Visited[Stats]


@dataclass(frozen=True)
class Verified:
    fingerprint: str
    path: str
    files: int
    bytes: int
    unreadable: int
    damaged: list[Damage]

    @property
    def is_sound(self) -> bool:
        return not self.damaged and not self.unreadable


def conversation_of(found: _kernels.Conversation) -> Conversation:
    return Conversation(
        hash=f"{found.hash:016x}",
        user=found.name_space.hex() if any(found.name_space) else None,
        title=found.title,
        turns=found.turns,
        tokens=found.n_tokens,
        bytes_own=found.bytes_own,
        bytes_shared=found.bytes_shared,
        tier=found.tier,
        hits=found.hits,
        ttl=found.ttl,
        protected=found.is_protected,
        expire=found.expire,
        backend=found.backend,
        created_ms=found.created_ms,
        last_used_ms=found.last_used_ms,
    )


def damage_of(found: _kernels.Damage) -> Damage:
    return Damage(found.path, found.reason, found.message)


def count_conversations(cache: Path, fingerprints: Sequence[str]) -> int:
    """Counts what is stored under these fingerprints. It raises HeldError where a server has them open."""
    models = [Model(cache, bytes.fromhex(name)) for name in fingerprints]
    return sum(len(list_model(model).conversations) for model in models if model.path.is_dir())


def list_cache(cache: Path, prefix: str | None = None) -> Visited[Listing]:
    """Lists the conversations of every model, those used last first."""
    return visit(cache, prefix, list_model)


def list_model(model: Model) -> Listing:
    with opened(model) as store:
        found = sorted(store.conversations(), key=lambda c: (-c.last_used_ms, c.hash, c.name_space))
        return Listing(
            model.name,
            _kernels.measure_tree(str(model.path)),
            [conversation_of(c) for c in found],
            sum(store.stats().damaged.values()),
            model.owner,
        )


def cache_stats(cache: Path, prefix: str | None = None) -> CacheStats:
    stored = visit(cache, prefix, model_stats)
    return CacheStats(str(cache), bytes_on_disk(cache), shutil.disk_usage(cache).free, stored)


def model_stats(model: Model) -> Stats:
    with opened(model) as store:
        stats = store.stats()
        conversations = store.conversations()
        aside = model.quarantined()
        return Stats(
            fingerprint=model.name,
            bytes=_kernels.measure_tree(str(model.path)),
            conversations=stats.n_conversations,
            users=len({c.name_space for c in conversations if any(c.name_space)}),
            turns=stats.n_checkpoints,
            pages=stats.n_runs,
            page_files=stats.n_segments,
            anchors=stats.n_anchors,
            hits=sum(c.hits for c in conversations),
            restores=None,
            unfinished_files=stats.counters["temporary_removed"],  # while inspecting, they are counted and left alone
            unusable_files=stats.counters["loose_segments"],
            quarantine_files=aside.files,
            quarantine_bytes=aside.bytes,
            unreadable=stats.counters["read_errors"],
            damaged={reason: n for reason, n in stats.damaged.items() if n},
        )


Progress = Callable[[int, int], None]  # it is told the bytes done and the bytes in all


def verify_cache(cache: Path, prefix: str | None = None, progress: Progress | None = None) -> Visited[Verified]:
    """Reads every byte."""
    reading = Reading(find_models(cache, prefix), progress)

    def look(model: Model) -> Verified:
        with opened(model) as store:
            return verify_store(model, store, reading.of(model))

    return visit(cache, prefix, look)


class Reading:
    """The progress of reading several models, one after the other."""

    def __init__(self, models: Sequence[Model], progress: Progress | None) -> None:
        self._starts: dict[str, int] = {}
        self._total = 0
        self._progress = progress
        for model in models:
            self._starts[model.name] = self._total
            self._total += file_bytes(model)

    def of(self, model: Model) -> Callable[[int], None] | None:
        progress = self._progress
        if progress is None:
            return None
        start = self._starts.get(model.name, 0)
        return lambda done: progress(min(start + done, self._total), self._total)


def verify_store(model: Model, store: _kernels.Store, progress: Callable[[int], None] | None = None) -> Verified:
    found_by_opening = len(store.damaged())
    report = store.verify(progress)
    return Verified(
        fingerprint=model.name,
        path=str(model.path),
        files=report.n_files + found_by_opening,
        bytes=report.n_bytes,
        unreadable=store.stats().counters["read_errors"],
        damaged=[damage_of(found) for found in report.damaged],
    )


def file_bytes(model: Model) -> int:
    """Counts the bytes of the files that verifying reads."""
    total = 0
    for folder, folders, files in os.walk(model.path):
        folders[:] = [name for name in folders if name != _kernels.QUARANTINE]
        for name in files:
            try:
                total += os.lstat(Path(folder) / name).st_size if name != _kernels.LOCK_FILE else 0
            except OSError:
                continue  # it is gone since, or the verification itself will report it
    return total


def whole_hash(wanted: str, stored: Sequence[str]) -> str | None:
    """Finds the one that begins so; None where there is none."""
    start = wanted.lower()
    if not HASH.fullmatch(start):
        raise UserError(f"{wanted!r} is not the hash of a conversation", "give 4 to 16 digits of 0-9 and a-f")
    names = sorted({name for name in stored if name.startswith(start)})
    if len(names) > 1:
        listed = "".join(f"\n  {name}" for name in names)
        raise UserError(f"{wanted} could be any of these conversations:{listed}", "give more of its digits")
    return names[0] if names else None
