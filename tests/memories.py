"""A memory for a test, and what is put into it and found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyrun.memory.intake import take_in
from pyrun.memory.recall import UserMemory
from pyrun.memory.spool import Record, write_spool
from pyrun.memory.store import Memory, key_of_user

TALK = "00000000000000aa"

# Queries and texts that databases, indexes and encodings choke on.
NASTY = [
    "",
    " ",
    "AND",
    "OR NOT NEAR",
    "NOT",
    '"',
    '""" "',
    "a AND",
    "NEAR(a b, 3)",
    "text:secret",
    "-minus +plus",
    "a*",
    "^start",
    "{text answer}: x",
    "v1.2.3",
    "...",
    "it's; DROP TABLE entries; --",
    "%_%",
    "🦙",
    "👩‍👩‍👧 family",
    "日本語のテキスト",
    "a\0b",
    "\ud800 half of a character",
    "\x1b[31mred",
    "x" * 10_000,
    "many words " * 1_000,
    "(" * 5_000,
    "\\",
    "'",
]


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    with Memory(tmp_path / "memory") as opened:
        yield opened


def archive(memory: Memory, texts: list[str], user: str = "", conversation: str = TALK) -> None:
    records = [Record(n, {"role": "user", "content": text}) for n, text in enumerate(texts)]
    write_spool(memory.spool, key_of_user(user), conversation, records)
    take_in(memory)


def found_texts(own: UserMemory, query: str, limit: int = 10) -> list[str]:
    return [one.entry.text for one in own.search(query, limit)]
