"""Sessions: conversations in the memory's file. What was appended is on the disk, whatever crashes next."""

from __future__ import annotations

import json
import secrets
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pyrun.chat.interrupts import interrupts_wait
from pyrun.errors import UserError
from pyrun.memory.query import clean
from pyrun.memory.store import Memory, key_of_user
from pyrun.memory.text import message_text
from pyrun.providers.events import Function, Message

TITLE_LENGTH = 70
NO_RESULT = "The call was interrupted. Whether it was made is not known."
NO_RESULT_TOKENS = 24


class SessionGoneError(UserError):
    """Nothing of this chat is on the disk any more."""

    def __init__(self) -> None:
        super().__init__("this chat was forgotten or removed meanwhile", "leave it, and begin another")


class SessionMovedError(UserError):
    """What is on the disk is no longer what this process has: what it knows of the one must not go into the other."""

    def __init__(self, session: Session) -> None:
        super().__init__(
            "this chat went on in another program",
            f"/sessions {session.name[:8]} takes it up as it is now; /branch keeps what is here",
        )


@dataclass(frozen=True)
class Row:
    """A message, how many tokens it has, and what is known about it."""

    message: Message
    n_tokens: int
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def role(self) -> str:
        return str(self.message["role"])


@dataclass
class Session:
    """A conversation in the memory of this process; `Sessions` keeps it the same on the disk."""

    id: int
    name: str  # 16 hex digits
    title: str = ""
    tools: list[Function] = field(default_factory=list)
    archived: int = 0  # messages before this one are in the archive, if they were dropped
    used: int = 0  # ms
    rows: list[Row] = field(default_factory=list)

    @property
    def last_role(self) -> str:
        return self.rows[-1].role if self.rows else ""


@dataclass(frozen=True)
class Listed:
    name: str
    title: str
    n_messages: int
    used: int  # ms


class Sessions:
    """One user's sessions."""

    def __init__(self, memory: Memory, user: str) -> None:
        self.memory = memory
        self.key = key_of_user(clean(user))

    def create(self, tools: Sequence[Function]) -> Session:
        now = _now()
        session = Session(0, secrets.token_hex(8), tools=list(tools), used=now)
        with self.memory.writing() as database:
            user = self.memory.ensure_user(self.key)
            new = database.execute(
                "INSERT INTO sessions(user, name, tools, created, used) VALUES (?, ?, ?, ?, ?)",
                (user, session.name, _tools_text(tools), now, now),
            ).lastrowid
            # Older versions let who had a forgotten session open write into it; its number may be the new one's.
            database.execute("DELETE FROM session_messages WHERE session = ?", (new,))
        assert new is not None
        session.id = new
        return session

    def load(self, name: str) -> Session:
        """By its name, or the beginning of one. Calls that were interrupted get a result that says so."""
        with self.memory.reading() as database:
            found = database.execute(
                "SELECT id, name, title, tools, archived, used FROM sessions "
                "WHERE user = ? AND substr(name, 1, length(?2)) = ?2 LIMIT 2",
                (self._user(), name),
            ).fetchall()
            if len(found) != 1:
                problem = "several sessions begin with" if found else "there is no session"
                raise UserError(f"{problem} {name!r}", "/sessions in a chat lists them")
            number, whole, title, tools, archived, used = found[0]
            rows = [
                Row(json.loads(message), n_tokens, json.loads(about))
                for message, n_tokens, about in database.execute(
                    "SELECT message, n_tokens, about FROM session_messages WHERE session = ? ORDER BY seq", (number,)
                )
            ]
        session = Session(number, whole, title, [Function(**tool) for tool in json.loads(tools)], archived, used, rows)
        self.heal(session)
        return session

    def heal(self, session: Session) -> None:
        """Gives the calls at the end that were interrupted a result that says so."""
        if missing := _unanswered(session.rows):
            self.append(session, [Row(no_result(call), NO_RESULT_TOKENS) for call in missing])

    def latest(self) -> Session | None:
        """The one that was used last and has been talked in."""
        with self.memory.reading() as database:
            row = database.execute(
                "SELECT name FROM sessions WHERE user = ? AND title != '' ORDER BY used DESC, id DESC LIMIT 1",
                (self._user(),),
            ).fetchone()
        return self.load(row[0]) if row else None

    @interrupts_wait()
    def append(self, session: Session, rows: Sequence[Row]) -> None:
        """All of them or none. What is in memory afterwards is what is on the disk, to the byte; where another program
        went on with the session, the rows are in memory alone, for a branch."""
        rows = [Row(json.loads(_text(row.message)), row.n_tokens, row.about) for row in rows]
        now = _now()
        title = session.title or next((_title(row.message) for row in rows if row.role == "user"), "")
        try:
            with self._writing(session, same_rows=True) as database:
                self._insert(database, session, rows, now)
                database.execute("UPDATE sessions SET used = ?, title = ? WHERE id = ?", (now, title, session.id))
        except SessionMovedError:
            session.rows.extend(rows)
            session.used = 0  # what is on the disk has as many rows, perhaps: it must not be taken for the same
            raise
        session.rows.extend(rows)
        session.title, session.used = title, now

    def _insert(self, database: sqlite3.Connection, session: Session, rows: Sequence[Row], now: int) -> None:
        (first,) = database.execute(
            "SELECT ifnull(max(seq), -1) + 1 FROM session_messages WHERE session = ?", (session.id,)
        ).fetchone()  # Older versions left gaps where two programs had a session open.
        database.executemany(
            "INSERT INTO session_messages(session, seq, message, n_tokens, at, about) VALUES (?, ?, ?, ?, ?, ?)",
            [
                (session.id, seq, _text(row.message), row.n_tokens, now, _text(row.about))
                for seq, row in enumerate(rows, first)
            ],
        )

    @interrupts_wait()
    def truncate(self, session: Session, length: int) -> list[Row]:
        """Takes back what came behind the first `length` messages, and gives it."""
        with self._writing(session, same_rows=True) as database:
            database.execute(
                "DELETE FROM session_messages WHERE session = ?1 AND seq >= "
                "(SELECT seq FROM session_messages WHERE session = ?1 ORDER BY seq LIMIT 1 OFFSET ?2)",
                (session.id, length),
            )
            database.execute("UPDATE sessions SET archived = min(archived, ?) WHERE id = ?", (length, session.id))
        session.archived = min(session.archived, length)
        gone = session.rows[length:]
        del session.rows[length:]
        return gone

    def set_tools(self, session: Session, tools: Sequence[Function]) -> None:
        with self._writing(session) as database:
            database.execute("UPDATE sessions SET tools = ? WHERE id = ?", (_tools_text(tools), session.id))
        session.tools = list(tools)

    def set_archived(self, session: Session, length: int) -> None:
        with self._writing(session, same_rows=True) as database:
            database.execute("UPDATE sessions SET archived = ? WHERE id = ?", (length, session.id))
        session.archived = length

    def rename(self, session: Session, title: str) -> None:
        with self._writing(session) as database:
            database.execute("UPDATE sessions SET title = ? WHERE id = ?", (clean(title), session.id))
        session.title = clean(title)

    def branch(self, session: Session) -> Session:
        """A second one that goes on from here."""
        new = self.create(session.tools)
        self.append(new, session.rows)
        self.rename(new, session.title)
        return new

    def find(self, text: str = "", limit: int = 20) -> list[Listed]:
        """Those that were talked in, the last used first; with a text, those that have all of its words."""
        words = text.casefold().split()
        with self.memory.reading() as database:
            rows = database.execute(
                "SELECT id, name, title, used, (SELECT count(*) FROM session_messages WHERE session = sessions.id) "
                "FROM sessions WHERE user = ? AND title != '' ORDER BY used DESC, id DESC",
                (self._user(),),
            ).fetchall()
            found: list[Listed] = []
            for number, name, title, used, n_messages in rows:
                if not words or _has_all(words, title, self._messages(number)):
                    found.append(Listed(name, title, n_messages, used))
                if len(found) == limit:
                    break
        return found

    def said(self, limit: int = 200) -> list[str]:
        """What the person wrote last, over all sessions, the oldest first."""
        with self.memory.reading() as database:
            rows = database.execute(
                "SELECT message FROM session_messages JOIN sessions ON sessions.id = session WHERE user = ? "
                "AND json_extract(message, '$.role') = 'user' ORDER BY at DESC, session DESC, seq DESC LIMIT ?",
                (self._user(), limit),
            ).fetchall()
        return [str(json.loads(row[0])["content"]) for row in reversed(rows)]

    def ensure(self, session: Session) -> None:
        """Raises SessionGoneError if it was forgotten, SessionMovedError if another program went on with it."""
        with self._writing(session, same_rows=True):
            pass

    @contextmanager
    def _writing(self, session: Session, *, same_rows: bool = False) -> Iterator[sqlite3.Connection]:
        """Another program may have forgotten the session, or removed it to make room. Then its number may be that of
        somebody else's session by now; its name never is. Or it has the session open, too, and has gone on with it:
        then it took messages back, or the time of the last one is not ours."""
        with self.memory.writing() as database:
            found = database.execute(
                "SELECT used, (SELECT count(*) FROM session_messages WHERE session = sessions.id) FROM sessions "
                "WHERE id = ? AND name = ?",
                (session.id, session.name),
            ).fetchone()
            if found is None:
                raise SessionGoneError
            if same_rows and found != (session.used, len(session.rows)):
                raise SessionMovedError(session)
            yield database

    def _messages(self, number: int) -> Iterator[Message]:
        for (message,) in self.memory.database.execute(
            "SELECT message FROM session_messages WHERE session = ?", (number,)
        ):
            yield json.loads(message)

    def _user(self) -> int:
        return self.memory.find_user(self.key) or 0


def no_result(call: str) -> Message:
    return {"role": "tool", "tool_call_id": call, "content": NO_RESULT}


def _unanswered(rows: list[Row]) -> list[str]:
    """Calls at the end that have no results."""
    answered = set()
    for row in reversed(rows):
        if row.role == "tool":
            answered.add(row.message["tool_call_id"])
            continue
        calls = row.message.get("tool_calls") or []
        return [call["id"] for call in calls if call["id"] not in answered]
    return []


def _has_all(words: list[str], title: str, messages: Iterator[Message]) -> bool:
    text = "\n".join([title, *(message_text(message) for message in messages)]).casefold()
    return all(word in text for word in words)


def _title(message: Message) -> str:
    line = " ".join(str(message["content"]).split())
    return line if len(line) <= TITLE_LENGTH else line[: TITLE_LENGTH - 1] + "…"


def _text(value: dict[str, Any]) -> str:
    """Half a surrogate pair would be refused by SQLite, and by every server."""
    return clean(json.dumps(value, ensure_ascii=False))


def _tools_text(tools: Sequence[Function]) -> str:
    return json.dumps([vars(tool) for tool in tools], ensure_ascii=False)


def _now() -> int:
    return int(time.time() * 1000)
