"""The tables of the memory, and how an older file becomes a newer one.

Migrations are only ever added. The version is SQLite's user_version; each step and its number are one transaction.
Every user has an index of words of their own: how often a word occurs is part of every score, and must say nothing
about what other users wrote.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from pyrun.errors import UserError

# All three kinds share a table: a message is (text, ''), a pair (question, answer), a fact (key, value).
FIRST = """
CREATE TABLE users(
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE
);
CREATE TABLE entries(
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    user INTEGER NOT NULL REFERENCES users(id),
    kind TEXT NOT NULL,
    text TEXT NOT NULL,
    answer TEXT NOT NULL DEFAULT '',
    role TEXT NOT NULL DEFAULT '',
    conversation TEXT NOT NULL DEFAULT '',
    seq INTEGER NOT NULL DEFAULT 0,
    at INTEGER NOT NULL,
    source TEXT NOT NULL DEFAULT '',
    key BLOB NOT NULL
);
CREATE UNIQUE INDEX entries_by_key ON entries(user, key);
CREATE INDEX entries_by_conversation ON entries(user, conversation, seq);
CREATE INDEX entries_by_age ON entries(kind, at);
CREATE TABLE gone(
    user INTEGER NOT NULL,
    key BLOB NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY(user, key)
) WITHOUT ROWID;
"""

# Chats: a session's messages as they are sent, in their order, with what is known about each.
SESSIONS = """
CREATE TABLE sessions(
    id INTEGER PRIMARY KEY,
    user INTEGER NOT NULL REFERENCES users(id),
    name TEXT NOT NULL UNIQUE,
    title TEXT NOT NULL DEFAULT '',
    tools TEXT NOT NULL DEFAULT '[]',
    archived INTEGER NOT NULL DEFAULT 0,
    created INTEGER NOT NULL,
    used INTEGER NOT NULL
);
CREATE INDEX sessions_by_use ON sessions(user, used);
CREATE TABLE session_messages(
    session INTEGER NOT NULL REFERENCES sessions(id),
    seq INTEGER NOT NULL,
    message TEXT NOT NULL,
    n_tokens INTEGER NOT NULL,
    at INTEGER NOT NULL,
    about TEXT NOT NULL DEFAULT '{}',
    PRIMARY KEY(session, seq)
) WITHOUT ROWID;
"""

# Pruning goes on where another call or program left it: what was removed takes room until the user's index is merged.
PRUNING = """
CREATE TABLE pruning(
    user INTEGER PRIMARY KEY REFERENCES users(id),
    bytes INTEGER NOT NULL,
    merging INTEGER NOT NULL DEFAULT 0
);
"""

MIGRATIONS: tuple[str, ...] = (FIRST, SESSIONS, PRUNING)


def words_table(user: int) -> str:
    return f"words_{user}"


def user_index(user: int) -> str:
    """What a user gets with the first entry: the index, and the view of the entries that belong into it."""
    return f"""
CREATE VIEW texts_{user} AS SELECT id, text, answer FROM entries WHERE user = {user};
CREATE VIRTUAL TABLE {words_table(user)} USING fts5(
    text, answer, content='texts_{user}', content_rowid='id', tokenize='unicode61 remove_diacritics 2'
);
"""


def migrate(database: sqlite3.Connection, migrations: Sequence[str] = MIGRATIONS) -> None:
    """Brings the file to the newest version, or leaves it as it is."""
    if version_of(database) == len(migrations):
        return
    database.execute("BEGIN IMMEDIATE")  # two programs may open a new file at once
    try:
        version = version_of(database)
        if version > len(migrations):
            raise UserError(
                f"the memory has version {version}; this llama-run knows versions up to {len(migrations)}",
                "use the newer llama-run that wrote it",
            )
        for step in migrations[version:]:
            for statement in statements(step):
                database.execute(statement)
        database.execute(f"PRAGMA user_version = {len(migrations)}")
        database.execute("COMMIT")
    except BaseException:
        rollback(database)
        raise


def rollback(database: sqlite3.Connection) -> None:
    """SQLite does it itself where a disk is full or fails; asked again, it would hide why."""
    if database.in_transaction:
        database.execute("ROLLBACK")


def version_of(database: sqlite3.Connection) -> int:
    version: int = database.execute("PRAGMA user_version").fetchone()[0]
    return version


def statements(script: str) -> list[str]:
    """sqlite3's executescript would commit what is under way."""
    return [statement for statement in script.split(";") if statement.strip()]
