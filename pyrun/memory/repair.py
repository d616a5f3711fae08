"""Whether the memory is sound, and what to do if it is not: an index is made anew, a broken file is read row by row."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyrun.errors import UserError
from pyrun.memory.schema import words_table
from pyrun.memory.store import COLUMNS, FILE, Entry, Memory

AT_ONCE = 1024
MAX_FAILURES = 20_000  # reads that fail, before the rest is given up
OTHERS = ("-wal", "-shm")


@dataclass
class Repaired:
    problems: list[str] = field(default_factory=list)
    n_saved: int = 0  # entries in a file that had to be made anew
    kept: Path | None = None  # where the broken one is


def check(memory: Memory) -> list[str]:
    """What is wrong with the file, and with its indexes. Reads all of it."""
    try:
        problems = [row[0] for row in memory.database.execute("PRAGMA integrity_check(20)") if row[0] != "ok"]
        for user in memory.users():
            words = words_table(user)
            try:
                # The index is compared with the entries, too: rank 1 asks for that.
                memory.database.execute(f"INSERT INTO {words}({words}, rank) VALUES ('integrity-check', 1)")
            except sqlite3.DatabaseError as error:
                problems.append(f"the index of words of user {user} does not fit its entries: {error}")
    except sqlite3.DatabaseError as error:
        problems = [str(error)]
    return problems


def repair(folder: Path) -> Repaired:
    """Mends what is wrong. Nothing is thrown away: a broken file is kept beside the new one."""
    done = Repaired()
    try:
        with Memory(folder) as memory:
            done.problems = check(memory)
            if not done.problems:
                return done
            try:
                _rebuild_indexes(memory)
                if not check(memory):
                    return done
            except sqlite3.DatabaseError:
                pass  # then it is more than the indexes
    except UserError as error:
        done.problems = [error.message]
    done.kept = _set_aside(folder)
    done.n_saved = _salvage(done.kept, folder)
    return done


def _rebuild_indexes(memory: Memory) -> None:
    for user in memory.users():
        words = words_table(user)
        memory.database.execute(f"INSERT INTO {words}({words}) VALUES ('rebuild')")


def _set_aside(folder: Path) -> Path:
    kept = folder / f"{FILE}.damaged-{int(time.time())}"
    number = 1
    while kept.exists():
        number += 1
        kept = kept.with_name(f"{FILE}.damaged-{int(time.time())}-{number}")
    for suffix in ("", *OTHERS):
        path = folder / f"{FILE}{suffix}"
        if path.exists():
            path.rename(f"{kept}{suffix}")
    return kept


def _salvage(broken: Path, folder: Path) -> int:
    n_saved = 0
    with Memory(folder) as memory, closing(sqlite3.connect(broken)) as old:
        try:
            users = dict(old.execute("SELECT id, key FROM users").fetchall())
            last = old.execute("SELECT seq FROM sqlite_sequence WHERE name = 'entries'").fetchone()[0]
        except (sqlite3.DatabaseError, TypeError):
            return 0  # not even the names of its tables can be read
        for rows in _readable(old, int(last)):
            with memory.writing():
                for *values, user, key in rows:
                    if user in users and isinstance(key, bytes):
                        n_saved += memory.insert(memory.ensure_user(users[user]), Entry(*values), key)
        _salvage_sessions(old, memory, users)
    return n_saved


def _salvage_sessions(old: sqlite3.Connection, memory: Memory, users: dict[int, str]) -> None:
    """Each session up to the first of its messages that cannot be read."""
    try:
        sessions = old.execute("SELECT id, user, name, title, tools, archived, created, used FROM sessions").fetchall()
    except sqlite3.DatabaseError:
        return
    for number, user, *values in sessions:
        rows: list[tuple[Any, ...]] = []
        try:
            for row in old.execute(
                "SELECT seq, message, n_tokens, at, about FROM session_messages WHERE session = ? ORDER BY seq",
                (number,),
            ):
                rows.append(row)
        except sqlite3.DatabaseError:
            pass
        with memory.writing() as database:
            new = database.execute(
                "INSERT INTO sessions(user, name, title, tools, archived, created, used) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (memory.ensure_user(users[user]), *values),
            ).lastrowid
            database.executemany(
                "INSERT INTO session_messages(session, seq, message, n_tokens, at, about) VALUES (?, ?, ?, ?, ?, ?)",
                [(new, *row) for row in rows],
            )


def _readable(old: sqlite3.Connection, last: int) -> Iterator[list[tuple[Any, ...]]]:
    """The rows that can be read: where a range of them fails, its halves are tried."""
    query = f"SELECT {COLUMNS}, user, key FROM entries NOT INDEXED WHERE id >= ? AND id < ?"
    failures = 0
    for start in range(0, last + 1, AT_ONCE):
        ranges = [(start, start + AT_ONCE)]
        while ranges and failures < MAX_FAILURES:
            begin, end = ranges.pop()
            try:
                yield old.execute(query, (begin, end)).fetchall()
            except sqlite3.DatabaseError:
                failures += 1
                if end - begin > 1:
                    middle = (begin + end) // 2
                    ranges += [(middle, end), (begin, middle)]
