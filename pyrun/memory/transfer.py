"""One user's memory as lines of JSON, out and in again. What is there already is not added twice, and of two values of
a fact the newer one stays."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from pyrun.errors import UserError
from pyrun.memory.query import clean
from pyrun.memory.recall import UserMemory, entry_key, fact_key
from pyrun.memory.store import COLUMNS, Entry

HEADER = {"llama_run_memory": 1}
KINDS = ("message", "pair", "fact")


@dataclass
class Imported:
    n_new: int = 0
    n_replaced: int = 0  # facts whose value here was older
    n_known: int = 0
    n_older: int = 0  # facts whose value here is newer; they were left out


def export_lines(user: UserMemory) -> Iterator[str]:
    yield json.dumps(HEADER)
    last = 0
    while rows := _page(user, last):
        for *values, key in rows:
            entry = Entry(*values)
            last = entry.id
            fields = {name: value for name, value in asdict(entry).items() if name != "id" and value not in ("", 0)}
            yield json.dumps({**fields, "key": key.hex()}, ensure_ascii=False)


def _page(user: UserMemory, after: int) -> list[tuple[Any, ...]]:
    with user.memory.reading() as database:
        owner = user.memory.find_user(user.key)
        query = f"SELECT {COLUMNS}, key FROM entries WHERE user = ? AND id > ? ORDER BY id LIMIT 500"
        return database.execute(query, (owner, after)).fetchall()


def import_lines(user: UserMemory, lines: Iterable[str]) -> Imported:
    """All lines or, if one of them is wrong, none."""
    done = Imported()
    with user.memory.writing():
        owner = user.memory.ensure_user(user.key)
        for number, line in enumerate(lines, 1):
            if number == 1:
                if _parsed(line, number) != HEADER:
                    raise UserError("this is no exported memory: its first line is another", "export one to see it")
            elif line.strip():
                _take(user, owner, *_entry(_parsed(line, number), number), done)
    user.memory.prune()
    return done


def _take(user: UserMemory, owner: int, entry: Entry, key: bytes, done: Imported) -> None:
    """Within `writing`."""
    before = user.find_fact(entry.text) if entry.kind == "fact" else None
    if before is None or before.answer == entry.answer:
        is_new = user.memory.insert(owner, entry, key)
        done.n_new += is_new
        done.n_known += not is_new
    elif before.at < entry.at:
        user.memory.remove([before.id])
        user.memory.insert(owner, entry, key)
        done.n_replaced += 1
    else:
        done.n_older += 1


def _parsed(line: str, number: int) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _wrong(number, "it is no JSON") from error
    if not isinstance(value, dict):
        raise _wrong(number, "it is no object")
    return value


def _entry(value: dict[str, Any], number: int) -> tuple[Entry, bytes]:
    texts = {name: value.get(name, "") for name in ("text", "answer", "role", "conversation", "source")}
    numbers = {name: value.get(name, 0) for name in ("seq", "at")}
    if value.get("kind") not in KINDS:
        raise _wrong(number, f"its kind is none of {', '.join(KINDS)}")
    if not all(isinstance(text, str) for text in texts.values()):
        raise _wrong(number, "a text in it is no text")
    if not all(isinstance(n, int) and 0 <= n < 2**53 for n in numbers.values()):
        raise _wrong(number, "a number in it is no number")
    fields: dict[str, Any] = {**{name: clean(text) for name, text in texts.items()}, **numbers}
    entry = Entry(kind=value["kind"], **fields)
    if entry.kind == "fact":
        return entry, fact_key(entry.text)
    try:
        key = bytes.fromhex(value.get("key", ""))
    except (ValueError, TypeError) as error:
        raise _wrong(number, "its key is no hex") from error
    return entry, key or entry_key(entry.kind, entry.text, entry.answer, entry.conversation, str(entry.seq))


def _wrong(number: int, why: str) -> UserError:
    return UserError(f"line {number} cannot be imported: {why}", "nothing was imported; mend or remove the line")
