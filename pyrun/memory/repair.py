"""Whether the memory is sound, and what to do if it is not: an index is made anew, a broken file is read row by row.

A file that is locked, newer than we are or not ours to open is not broken: that raises UserError, and nothing is moved.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyrun.folder_lock import alone_in
from pyrun.memory.schema import words_table
from pyrun.memory.store import (
    BUSY_SECONDS,
    COLUMNS,
    FILE,
    UNREAD,
    DamagedError,
    Entry,
    Memory,
    explained,
    unended,
    unread,
)

AT_ONCE = 1024
MAX_FAILURES = 20_000  # reads that fail, before the rest is given up
MAX_ID = (1 << 63) - 1
TABLES = ("users", "entries", "sessions", "session_messages")  # that hold texts
OTHERS = ("-wal", "-shm")
SET_ASIDE = re.compile(re.escape(FILE) + r"\.damaged-(\d+)")
REPAIRS = "repairs"  # an empty folder for who repairs


@dataclass
class Repaired:
    problems: list[str] = field(default_factory=list)
    n_saved: int = 0  # entries in a file that had to be made anew
    n_left_out: int = 0  # rows of any table that could be read, but that the new file does not take
    kept: Path | None = None  # where the broken one is


def check(memory: Memory) -> list[str]:
    """What is wrong with the file, and with its indexes. Reads all of it."""
    return unended(memory.folder) + _check_file(memory)


def _check_file(memory: Memory) -> list[str]:
    try:
        with memory.reading() as database:
            problems = [row[0] for row in database.execute("PRAGMA integrity_check(20)") if row[0] != "ok"]
            users = memory.users()
            for table in TABLES:  # SQLite does not look whether a text is one
                for _ in database.execute(f"SELECT * FROM {table}"):
                    pass
        return problems + [problem for user in users for problem in _check_index(memory, user)]
    except DamagedError as error:
        return [error.problem]


def _check_index(memory: Memory, user: int) -> list[str]:
    words = words_table(user)
    try:
        with memory.writing() as database:
            # The index is compared with the entries, too: rank 1 asks for that.
            database.execute(f"INSERT INTO {words}({words}, rank) VALUES ('integrity-check', 1)")
    except DamagedError as error:
        return [f"the index of words of user {user} does not fit its entries: {error.problem}"]
    return []


def repair(folder: Path) -> Repaired:
    """Mends what is wrong. Nothing is thrown away: a broken file is kept beside the new one."""
    done = Repaired()
    with explained(folder / FILE), _alone(folder):
        if not _is_mended(folder, done):
            _set_aside(folder)
        for broken in unread(folder):
            _salvage(broken, folder, done)
            done.kept = _name_read(broken)
    return done


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One repair at a time: of two that read the same file, the second would bring back what was forgotten since the
    first. The memory's own folder is for shorter waits: who opens the memory has it."""
    repairs = folder / REPAIRS
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    repairs.mkdir(mode=0o700, exist_ok=True)
    with alone_in(repairs, "waiting for another repair of the memory"):
        yield


def _is_mended(folder: Path, done: Repaired) -> bool:
    """Whether the file itself is sound now."""
    try:
        with Memory(folder) as memory:
            problems = _check_file(memory)
            done.problems = unended(folder) + problems
            if not problems:
                return True
            _rebuild_indexes(memory)
            return not _check_file(memory)
    except DamagedError as error:  # it is more than the indexes
        done.problems = done.problems or [error.problem]
        return False


def _rebuild_indexes(memory: Memory) -> None:
    with memory.writing() as database:
        for user in memory.users():
            words = words_table(user)
            database.execute(f"INSERT INTO {words}({words}) VALUES ('rebuild')")


def _set_aside(folder: Path) -> None:
    """Nobody opens the memory meanwhile, and whoever has it open sees at the next write that it was set aside."""
    # Names tell which file is newer, also where the clock was put back.
    newest = max((int(found[1]) for path in folder.iterdir() if (found := SET_ASIDE.match(path.name))), default=0)
    kept = folder / f"{FILE}.damaged-{max(int(time.time() * 1000), newest + 1)}{UNREAD}"
    with alone_in(folder), _write_lock(folder / FILE):
        for suffix in ("", *OTHERS):
            path = folder / f"{FILE}{suffix}"
            if path.exists():
                path.rename(f"{kept}{suffix}")


def _name_read(broken: Path) -> Path:
    """The file itself comes last: until then another repair reads it once more."""
    kept = broken.with_suffix("")
    for suffix in (*OTHERS, ""):
        with suppress(FileNotFoundError):
            Path(f"{broken}{suffix}").rename(f"{kept}{suffix}")
    return kept


@contextmanager
def _write_lock(path: Path) -> Iterator[None]:
    """Waits for whoever writes now, and keeps others from it. Where the file is too broken for that, who has it open
    may still write: they are told behind it that the file was set aside."""
    with explained(path), closing(_opened(path)) as database:
        with suppress(DamagedError), explained(path):
            database.execute("BEGIN IMMEDIATE")
        yield


def _salvage(broken: Path, folder: Path, done: Repaired) -> None:
    """Reads it into the memory, again if that was interrupted: what is there by then is newer, and stays."""
    with Memory(folder) as memory, closing(_opened(broken)) as old:
        old.text_factory = lambda data: data.decode("utf-8", "replace")
        _rows(old, "PRAGMA writable_schema = ON")  # a table that is not understood hides no other
        users = dict(_rows(old, "SELECT id, key FROM users WHERE key IS NOT NULL"))
        for rows in _entries(old):
            with memory.writing():
                for *values, user, key in rows:
                    if user not in users or not isinstance(key, bytes):
                        done.n_left_out += 1
                        continue
                    try:
                        done.n_saved += memory.insert(memory.ensure_user(users[user]), Entry(*values), key)
                    except sqlite3.IntegrityError:
                        done.n_left_out += 1
        _salvage_gone(old, memory, users)
        _salvage_sessions(old, memory, users, done)


def _opened(path: Path) -> sqlite3.Connection:
    """Where somebody has moved the file meanwhile, none is made."""
    with explained(path):
        uri = f"{path.absolute().as_uri()}?mode=rw"
        return sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)


def _salvage_gone(old: sqlite3.Connection, memory: Memory, users: dict[int, str]) -> None:
    """What was forgotten stays so."""
    with memory.writing() as database:
        for user, *values in _rows(old, "SELECT user, key, at FROM gone"):
            if user in users:
                owner = memory.ensure_user(users[user])
                database.execute("INSERT OR IGNORE INTO gone(user, key, at) VALUES (?, ?, ?)", (owner, *values))


def _salvage_sessions(old: sqlite3.Connection, memory: Memory, users: dict[int, str], done: Repaired) -> None:
    """Each session up to the first of its messages that cannot be read or makes no sense."""
    sessions = _rows(old, "SELECT id, user, name, title, tools, archived, created, used FROM sessions")
    there = {name for (name,) in memory.database.execute("SELECT name FROM sessions")}
    for number, user, *values in sessions:
        if values[0] in there:
            continue
        rows = _rows(
            old,
            "SELECT seq, message, n_tokens, at, about FROM session_messages WHERE session = ? ORDER BY seq",
            number,
        )
        n_left = 1 + len(rows)
        with memory.writing() as database, suppress(sqlite3.IntegrityError, KeyError):
            new = database.execute(
                "INSERT INTO sessions(user, name, title, tools, archived, created, used) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (memory.ensure_user(users[user]), *values),
            ).lastrowid
            n_left -= 1
            for row in rows:
                database.execute(
                    "INSERT INTO session_messages(session, seq, message, n_tokens, at, about) "
                    "VALUES (?, ?, ?, ?, ?, ?)",
                    (new, *row),
                )
                n_left -= 1
        done.n_left_out += n_left


def _rows(old: sqlite3.Connection, query: str, *values: object) -> list[tuple[Any, ...]]:
    """Up to the first that cannot be read; none if there is no such table."""
    rows: list[tuple[Any, ...]] = []
    with suppress(sqlite3.DatabaseError, UnicodeDecodeError):
        rows.extend(old.execute(query, values))
    return rows


def _entries(old: sqlite3.Connection) -> Iterator[list[tuple[Any, ...]]]:
    """Those that can be read, some at once: where a range of numbers fails, its halves are tried."""
    query = f"SELECT {COLUMNS}, user, key FROM entries NOT INDEXED WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?"
    ranges = [(0, MAX_ID)]
    failures = 0
    while ranges and failures < MAX_FAILURES:
        begin, end = ranges.pop()
        try:
            rows = old.execute(query, (begin, end, AT_ONCE)).fetchall()
        except (sqlite3.DatabaseError, UnicodeDecodeError):
            failures += 1
            if begin < end:
                middle = (begin + end) // 2
                ranges += [(middle + 1, end), (begin, middle)]
            continue
        yield rows
        last = max((number for *_, number, _user, _key in rows), default=end)
        if len(rows) == AT_ONCE and last < end:
            ranges.append((last + 1, end))
