"""One user's part of the memory: search, facts, questions with answers. No lookup leaves it."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

from pyrun.errors import UserError
from pyrun.memory.query import clean, match_all, match_any, words
from pyrun.memory.schema import words_table
from pyrun.memory.store import COLUMNS, Entry, Memory, key_of_user

COMMON = 2000  # entries with a word, from which on it is taken for one that is everywhere
CANDIDATES = 100  # by their words alone; the best of them are chosen by words and age
RECENT_WEIGHT = 0.5  # something said just now scores half as much again as something very old
HALF_LIFE_MS = 30 * 86_400_000
SCANNED = 20_000  # entries that are looked through letter by letter, where no word is found
SNIPPET_WORDS = 32
SNIPPET_CHARACTERS = 200
MAX_FACT_KEY = 200
MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Found:
    entry: Entry
    snippet: str
    score: float


class UserMemory:
    """What one user told, asked or left behind."""

    def __init__(self, memory: Memory, user: str) -> None:
        """`user` is the id that clients give; '' is whoever gives none."""
        self.memory = memory
        self.key = key_of_user(clean(user))

    # Searching

    def search(self, text: str, limit: int = 10, now_ms: int | None = None) -> list[Found]:
        """Entries with these words, the best first: BM25, and a little more for what is recent. Any text will do."""
        with self.memory.reading():
            user = self.memory.find_user(self.key)
            if user is None or limit < 1:
                return []
            chosen = words(text)
            now = int(time.time() * 1000) if now_ms is None else now_ms
            found = [
                self._found(user, number, match_any(chosen), score)
                for score, number in self._best(user, chosen, now)[:limit]
            ]
            # Signs are no words, and not all writing has spaces between them.
            if not found and not (chosen and text.isascii()):
                return self._containing(user, clean(text).strip(), limit)
            return found

    def _best(self, user: int, chosen: list[str], now: int) -> list[tuple[float, int]]:
        """Scores and ids. Words that are everywhere say nothing, and cost the most: the rare ones decide, and where
        there are none, age alone."""
        frequencies = {word: self._frequency(user, word) for word in chosen}
        known = sorted((word for word in chosen if frequencies[word]), key=lambda word: frequencies[word])
        if not known:
            return []
        table = words_table(user)
        if frequencies[known[0]] > COMMON:
            query = f"SELECT rowid, 0 AS rank FROM {table} WHERE {table} MATCH ? ORDER BY rowid DESC LIMIT ?"
            matches = [match_all(known), match_any(known)]
        else:
            totals = itertools.accumulate(frequencies[word] for word in known)
            rare = [word for word, total in zip(known, totals, strict=True) if total <= COMMON or word == known[0]]
            query = f"SELECT rowid, rank FROM {table} WHERE {table} MATCH ? ORDER BY rank LIMIT ?"
            matches = [match_any(rare)]
        for match in matches:
            rows = self.memory.database.execute(
                f"SELECT id, rank, at FROM ({query}) JOIN entries ON id = rowid", (match, CANDIDATES)
            ).fetchall()
            if rows:
                return sorted(((_score(rank, now - at), number) for number, rank, at in rows), reverse=True)
        return []

    def _frequency(self, user: int, word: str) -> int:
        """In how many entries a word is, counted up to the point where it is common."""
        table = words_table(user)
        row = self.memory.database.execute(
            f"SELECT count(*) FROM (SELECT 1 FROM {table} WHERE {table} MATCH ? LIMIT ?)",
            (match_any([word]), COMMON + 1),
        ).fetchone()
        return int(row[0])

    def _found(self, user: int, number: int, query: str, score: float) -> Found:
        table = words_table(user)
        row = self.memory.database.execute(
            f"SELECT snippet({table}, -1, '[', ']', '…', ?) FROM {table} WHERE {table} MATCH ? AND rowid = ?",
            (SNIPPET_WORDS, query, number),
        ).fetchone()
        return Found(self._entries("id = ?", (number,))[0], row[0], score)

    def _containing(self, user: int, text: str, limit: int) -> list[Found]:
        """Entries with just these letters, the newest first."""
        if not text:
            return []
        rows = self.memory.database.execute(
            "SELECT id FROM (SELECT id, text, answer FROM entries WHERE user = ?1 ORDER BY id DESC LIMIT ?2) "
            "WHERE instr(text, ?3) OR instr(answer, ?3) LIMIT ?4",
            (user, SCANNED, text, limit),
        ).fetchall()
        entries = [self._entries("id = ?", row)[0] for row in rows]
        return [Found(entry, _around(entry, text), 0.0) for entry in entries]

    # Questions with answers, and facts

    def store(self, question: str, answer: str, source: str = "") -> bool:
        """Remembers a question with its answer; False if just that is known."""
        question, answer = _checked(question, "the question"), _checked(answer, "the answer")
        entry = Entry("pair", question, answer, at=_now(), source=clean(source))
        with self.memory.writing():
            new = self.memory.insert(self.memory.ensure_user(self.key), entry, entry_key("pair", question, answer))
        self.memory.prune()
        return new

    def fact(self, name: str) -> Entry | None:
        with self.memory.reading():
            return self.find_fact(name)

    def find_fact(self, name: str) -> Entry | None:
        """Within `reading` or `writing`."""
        found = self._entries("user = ? AND key = ? AND kind = 'fact'", (self._user(), fact_key(name)))
        return found[0] if found else None

    def facts(self) -> list[Entry]:
        with self.memory.reading():
            return self._entries("user = ? AND kind = 'fact' ORDER BY text", (self._user(),))

    def set_fact(self, name: str, value: str, source: str = "") -> None:
        """The newest value counts; there is no other."""
        name, value = _checked(name, "the name"), _checked(value, "the value")
        if len(name) > MAX_FACT_KEY:
            raise UserError(f"a fact's name has at most {MAX_FACT_KEY} letters", "put what is long into the value")
        entry = Entry("fact", name, value, at=_now(), source=clean(source))
        with self.memory.writing():
            user = self.memory.ensure_user(self.key)
            self.memory.remove(self._ids("user = ? AND key = ?", (user, fact_key(name))))
            self.memory.insert(user, entry, fact_key(name))
        self.memory.prune()

    # Looking and forgetting

    def show(self, conversation: str | None = None, limit: int = 100) -> list[Entry]:
        """The newest entries, or a conversation's messages as they were said."""
        with self.memory.reading():
            user = self._user()
            if conversation is None:
                return self._entries("user = ? ORDER BY id DESC LIMIT ?", (user, limit))
            return self._entries(
                "user = ? AND conversation = ? AND kind = 'message' ORDER BY seq, id LIMIT ?",
                (user, conversation, limit),
            )

    def conversations(self) -> list[tuple[str, int, int]]:
        """Of the archived messages: conversation, how many, and when the last one came; the newest first."""
        with self.memory.reading() as database:
            return database.execute(
                "SELECT conversation, count(*), max(at) FROM entries WHERE user = ? AND kind = 'message' "
                "GROUP BY conversation ORDER BY max(at) DESC",
                (self._user(),),
            ).fetchall()

    def counts(self) -> dict[str, int]:
        """How many entries of each kind there are."""
        with self.memory.reading() as database:
            rows = database.execute("SELECT kind, count(*) FROM entries WHERE user = ? GROUP BY kind", (self._user(),))
            return {"message": 0, "pair": 0, "fact": 0, **dict(rows.fetchall())}

    def _forget(self, where: str, values: Sequence[object], sessions: str = "0") -> int:
        """`sessions` says which of them go as well, with the same values."""
        with self.memory.writing() as database:
            self.memory.ensure_whole()
            user = self._user()
            own = (user, *values)
            ids = self._ids(f"user = ? AND ({where})", own)
            self.memory.remove(ids)
            chats = database.execute(
                f"SELECT id FROM sessions WHERE user = ? AND ({sessions})", own[: 1 + sessions.count("?")]
            )
            gone = [row[0] for row in chats.fetchall()]
            self.memory.remove_sessions(gone)
        if user:  # also if nothing is left to remove: whoever did that may have been interrupted here
            self.memory.erase_removed(user)
        return len(ids) + len(gone)

    def forget_fact(self, name: str) -> bool:
        return self._forget("key = ? AND kind = 'fact'", (fact_key(name),)) > 0

    def forget_conversation(self, conversation: str) -> int:
        return self._forget("conversation = ? AND kind = 'message'", (conversation,), "name = ?")

    def forget_entry(self, number: int) -> int:
        return self._forget("id = ?", (number,))

    def forget_all(self) -> int:
        return self._forget("1", (), "1")

    # Shared by the above

    def _user(self) -> int:
        return self.memory.find_user(self.key) or 0

    def _entries(self, where: str, values: Sequence[object]) -> list[Entry]:
        rows = self.memory.database.execute(f"SELECT {COLUMNS} FROM entries WHERE {where}", tuple(values)).fetchall()
        return [Entry(*row) for row in rows]

    def _ids(self, where: str, values: Sequence[object]) -> list[int]:
        return [row[0] for row in self.memory.database.execute(f"SELECT id FROM entries WHERE {where}", tuple(values))]


def entry_key(*parts: str) -> bytes:
    """By which the same thing is known when it comes again."""
    content = b"".join(len(data).to_bytes(8, "little") + data for data in (part.encode() for part in parts))
    return hashlib.blake2b(content, digest_size=16).digest()


def fact_key(name: str) -> bytes:
    return entry_key("fact", clean(name).strip())


def _checked(text: str, what: str) -> str:
    text = clean(text).strip()
    if not text:
        raise UserError(f"{what} is empty", "say something")
    if len(text.encode()) > MAX_BYTES:
        raise UserError(f"{what} has more than 1 MiB", "keep what matters of it")
    return text


def _score(rank: float, age_ms: int) -> float:
    fresh: float = 0.5 ** (max(0, age_ms) / HALF_LIFE_MS)
    return -rank * (1 + RECENT_WEIGHT * fresh) if rank else fresh


def _around(entry: Entry, text: str) -> str:
    whole = entry.text if text in entry.text else entry.answer
    at = whole.index(text)
    start, end = max(0, at - SNIPPET_CHARACTERS // 2), at + len(text) + SNIPPET_CHARACTERS // 2
    before, after = "…" if start else "", "…" if end < len(whole) else ""
    return f"{before}{whole[start:at]}[{text}]{whole[at + len(text) : end]}{after}"


def _now() -> int:
    return int(time.time() * 1000)
