"""The memory: one SQLite file with a full-text index per user. Whoever opens it may be one of several at once."""

from __future__ import annotations

import os
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from types import TracebackType

from pyrun._kernels import user_key
from pyrun.errors import UserError
from pyrun.folder_lock import alone_in
from pyrun.memory.schema import migrate, rollback, statements, user_index, words_table
from pyrun.memory.spool import SPOOL

FILE = "memory.db"
UNREAD = ".unread"  # ends the name of a broken file until all of it that can be read is in the new one
MAX_BYTES = 10_000_000_000
PRUNED_TO = 0.9  # of the limit: removing a little each time would keep the disk busy
PRUNE_SECONDS = 1.0  # after which a call leaves the rest of it to the next
MOST_OF_A_ROUND = 0.25  # of what is used: how much room an entry takes is estimated, and a limit may be set far lower
ENTRY_BYTES = 200  # that an entry takes beside its text
BYTES_PER_TEXT_BYTE = 2  # the text, and its words in the index
REMOVED_AT_ONCE = 2_000_000  # bytes of entries in one transaction, for which others wait
MERGED_AT_ONCE = 1000  # pages of an index in one transaction
GIVEN_AT_ONCE = 1000  # pages in one transaction
BUSY_SECONDS = 60  # for which we wait for others
REMEMBERED_MS = 365 * 86_400_000  # how long it is known that something was removed, and must not come back
REPAIR = "`llama-run memory stats --repair` saves what can be read"
MAX_PROBLEM = 300  # characters of what SQLite says: it may quote a whole text
# SQLite's codes for what is no fault of the file, with the words for them: before Python 3.11 an error has no code.
NOT_DAMAGE = {
    3: "access permission denied",
    5: "database is locked",
    6: "database table is locked",
    8: "attempt to write a readonly database",
    10: "disk I/O error",
    13: "database or disk is full",
    14: "unable to open database file",
    15: "locking protocol",
}


class DamagedError(UserError):
    """The file itself is broken. One that is locked, newer than we are, or not ours to open is not."""

    def __init__(self, path: Path, problem: str) -> None:
        self.problem = problem[:MAX_PROBLEM]
        super().__init__(f"{path} is damaged: {self.problem}", REPAIR)


@dataclass(frozen=True)
class Entry:
    """A message, a question with its answer, or a fact. What `text` and `answer` are depends on the kind."""

    kind: str  # message, pair, fact
    text: str  # what was said; the question; the fact's name
    answer: str = ""  # of a pair; the fact's value
    role: str = ""
    conversation: str = ""
    seq: int = 0
    at: int = 0  # ms
    source: str = ""
    id: int = 0


OLDEST = """
SELECT id, user, length(CAST(text AS BLOB)) + length(CAST(answer AS BLOB))
FROM entries WHERE kind = ? ORDER BY at, id
"""
COLUMNS = "kind, text, answer, role, conversation, seq, at, source, id"


class Memory:
    """An open memory. Not for several threads at once; open one for each."""

    def __init__(self, folder: Path, max_bytes: int = MAX_BYTES) -> None:
        self.folder = folder
        self.path = folder / FILE
        self.max_bytes = max_bytes
        with explained(self.path):
            self.database, self._file = _open(self.path)
            try:
                migrate(self.database)
            except BaseException:
                self.database.close()
                raise

    def __enter__(self) -> Memory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.database.close()

    @property
    def spool(self) -> Path:
        return self.folder / SPOOL

    def ensure_whole(self) -> None:
        """Raises UserError while a repair reads a broken file into this one, or was interrupted there: what would be
        forgotten now would come from that file again, and what was forgotten is not known yet."""
        for problem in unended(self.folder):
            raise UserError(problem, f"if nothing repairs it now: {REPAIR}")

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Several reads of one moment."""
        with self._transaction("BEGIN"):
            yield self.database

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """All of it or nothing, and on the disk when it is left."""
        with self._transaction("BEGIN IMMEDIATE"):
            yield self.database
            self.database.execute("COMMIT")
            self._check_file()  # Where the file's head is broken, a repair cannot keep us from writing.

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[None]:
        """Rolled back unless it was committed."""
        with explained(self.path):
            self.database.execute(begin)
            try:
                self._check_file()
                yield
            finally:
                rollback(self.database)

    def _check_file(self) -> None:
        """A repair sets the file aside while it holds the write lock: whoever gets that afterwards would write what
        nobody finds. We do not go over to the new file, where a session that our caller has open may have another
        number."""
        if file_at(self.path) != self._file:
            raise UserError(
                f"{self.path} was repaired or moved while this program had it open; nothing more is written",
                "end this program and start it again",
            )

    def find_user(self, key: str) -> int | None:
        row = self.database.execute("SELECT id FROM users WHERE key = ?", (key,)).fetchone()
        return row[0] if row else None

    def ensure_user(self, key: str) -> int:
        """Within `writing`."""
        found = self.find_user(key)
        if found is not None:
            return found
        new = self.database.execute("INSERT INTO users(key) VALUES (?)", (key,)).lastrowid
        assert new is not None
        for statement in statements(user_index(new)):
            self.database.execute(statement)
        return new

    def users(self) -> list[int]:
        return [row[0] for row in self.database.execute("SELECT id FROM users ORDER BY id")]

    # The index is told of every change by hand, here and nowhere else: what it is told to forget must be what it was
    # told to learn, to the byte.

    def insert(self, user: int, entry: Entry, key: bytes) -> bool:
        """False if it is there already. Within `writing`."""
        if self.database.execute("SELECT 1 FROM entries WHERE user = ? AND key = ?", (user, key)).fetchone():
            return False
        row = self.database.execute(
            "INSERT INTO entries(kind, text, answer, role, conversation, seq, at, source, user, key) "
            "VALUES (:kind, :text, :answer, :role, :conversation, :seq, :at, :source, :user, :key)",
            {**asdict(entry), "user": user, "key": key},
        ).lastrowid
        self.database.execute(
            f"INSERT INTO {words_table(user)}(rowid, text, answer) VALUES (?, ?, ?)", (row, entry.text, entry.answer)
        )
        return True

    def was_removed(self, user: int, key: bytes) -> bool:
        """Whether it was here once. A server that starts again leaves all that a history dropped in the spool anew."""
        return (
            self.database.execute("SELECT 1 FROM gone WHERE user = ? AND key = ?", (user, key)).fetchone() is not None
        )

    def remove(self, ids: list[int]) -> None:
        """Within `writing`."""
        now = int(time.time() * 1000)
        for number in ids:
            row = self.database.execute(
                "SELECT user, key, text, answer FROM entries WHERE id = ?", (number,)
            ).fetchone()
            if row is None:
                continue
            user, key, text, answer = row
            words = words_table(user)
            self.database.execute(
                f"INSERT INTO {words}({words}, rowid, text, answer) VALUES ('delete', ?, ?, ?)", (number, text, answer)
            )
            self.database.execute("DELETE FROM entries WHERE id = ?", (number,))
            self.database.execute("INSERT OR REPLACE INTO gone(user, key, at) VALUES (?, ?, ?)", (user, key, now))

    def remove_sessions(self, ids: list[int]) -> None:
        """Within `writing`."""
        for number in ids:
            self.database.execute("DELETE FROM session_messages WHERE session = ?", (number,))
            self.database.execute("DELETE FROM sessions WHERE id = ?", (number,))

    def used_bytes(self) -> int:
        """What the file needs; it may be larger, with room that is used again."""
        with explained(self.path):
            return (self._pragma("page_count") - self._pragma("freelist_count")) * self._pragma("page_size")

    def file_bytes(self) -> int:
        with explained(self.path):
            return self._pragma("page_count") * self._pragma("page_size")

    def _pragma(self, name: str) -> int:
        value: int = self.database.execute(f"PRAGMA {name}").fetchone()[0]
        return value

    def prune(self) -> bool:
        """Removes the oldest messages, then pairs, then sessions, until the limit is kept again. Facts and the session
        that was used last are never removed. Somebody waits, so after PRUNE_SECONDS the rest is left to the next
        call, also another program's. False if there was nothing to do."""
        end = time.monotonic() + PRUNE_SECONDS
        n_steps = 0
        while self.file_bytes() > self.max_bytes and (n_steps == 0 or time.monotonic() < end):
            with self.writing():
                worked = self._prune_step()
            if not worked and not self._give_back(self.max_bytes):
                break
            n_steps += 1
        return n_steps > 0

    def _prune_step(self) -> bool:
        """Whether there was something to do. Within `writing`. A round removes what is too much, and only then merges
        the indexes of those who had it: that writes them anew, and frees what the removed words took. So it is seen
        at the end of a round alone whether another one is needed."""
        n_unmerged = self.database.execute("SELECT total(bytes) FROM pruning").fetchone()[0]
        used = self.used_bytes()
        if not n_unmerged:
            if used <= self.max_bytes:
                return False
            self.database.execute("DELETE FROM gone WHERE at < ?", (int(time.time() * 1000) - REMEMBERED_MS,))
        n_wanted = min(used - self.max_bytes * PRUNED_TO, used * MOST_OF_A_ROUND) - n_unmerged
        if n_wanted > 0 and self._remove_oldest(min(n_wanted, REMOVED_AT_ONCE)):
            return True
        return self._merge_pruned() or self._remove_oldest_session()

    def _remove_oldest(self, n_bytes: float) -> bool:
        """As many of the messages, or else of the pairs, as take about so many bytes."""
        for kind in ("message", "pair"):
            ids = []
            sizes: Counter[int] = Counter()
            for number, user, size in self.database.execute(OLDEST, (kind,)):
                ids.append(number)
                sizes[user] += ENTRY_BYTES + BYTES_PER_TEXT_BYTE * size
                if sizes.total() >= n_bytes:
                    break
            self.remove(ids)
            self.database.executemany(
                "INSERT INTO pruning(user, bytes) VALUES (?, ?) "
                "ON CONFLICT(user) DO UPDATE SET bytes = bytes + excluded.bytes",
                sizes.items(),
            )
            if ids:
                return True
        return False

    def _merge_pruned(self) -> bool:
        """A step of one user's merge; False if nobody's is left."""
        row = self.database.execute("SELECT user, merging FROM pruning ORDER BY user LIMIT 1").fetchone()
        if row is None:
            return False
        user, is_merging = row
        if self._merge(user, MERGED_AT_ONCE if is_merging else -MERGED_AT_ONCE):
            self.database.execute("UPDATE pruning SET merging = 1 WHERE user = ?", (user,))
        else:
            self.database.execute("DELETE FROM pruning WHERE user = ?", (user,))
        return True

    def _remove_oldest_session(self) -> bool:
        rows = self.database.execute("SELECT id FROM sessions ORDER BY used DESC, id DESC LIMIT -1 OFFSET 1").fetchall()
        self.remove_sessions([row[0] for row in rows[-1:]])
        return bool(rows)

    def _merge(self, user: int, n_pages: int) -> bool:
        """Merges so many pages of a user's index: whether there was something to merge. Below zero it begins to merge
        all parts of that into one, above it goes on with it. Within `writing`."""
        words = words_table(user)
        before = self.database.total_changes
        self.database.execute(f"INSERT INTO {words}({words}, rank) VALUES ('merge', ?)", (n_pages,))
        return self.database.total_changes - before >= 2  # FTS5's sign for it

    def erase_removed(self, user: int) -> None:
        """Takes what was removed out of the user's index of words, and off the disk. A removed word stands in the index
        until all parts of that are merged into one, and in the log until that is emptied. Raises UserError where the
        log cannot be emptied, because another program reads what was there before.

        FTS5's own secure-delete would be faster, but no SQLite before 3.42 opens the file any more after it.
        """
        n_pages = -MERGED_AT_ONCE
        more = True
        while more:
            with self.writing():
                more = self._merge(user, n_pages)
            n_pages = MERGED_AT_ONCE
        while self._give_back(0):
            pass
        if not self._empty_log():
            raise UserError(
                f"it is forgotten, but a copy stays in {self.path}-wal as long as another program reads the memory",
                "end that program, and run this again",
            )

    def _give_back(self, n_bytes: int) -> bool:
        """Gives some free pages of a file with more than so many bytes back to the disk: whether there were any."""
        before = self.file_bytes()
        n_pages = min(GIVEN_AT_ONCE, (before - n_bytes) // self._pragma("page_size"))
        if n_pages <= 0:
            return False
        with explained(self.path):  # for Python's `execute` the pragma would end after one page
            self.database.executescript(f"PRAGMA incremental_vacuum({n_pages})")
        return self.file_bytes() < before

    def _empty_log(self) -> bool:
        """False if somebody still reads it."""
        with explained(self.path):
            is_busy, _, _ = self.database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return not is_busy


def unread(folder: Path) -> list[Path]:
    """Broken files of which a repair has not read all that it can, the newest first."""
    with explained(folder):  # `glob` hides that a folder cannot be read
        found = [path for path in folder.iterdir() if fnmatch(path.name, f"{FILE}.damaged-*{UNREAD}")]
    return sorted(found, reverse=True)


def unended(folder: Path) -> list[str]:
    """What is told of them."""
    return [f"a repair is reading {path}, or was interrupted" for path in unread(folder)]


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """What SQLite says about this file, as errors that a person can act on."""
    try:
        yield
    except UnicodeDecodeError as error:  # SQLite quotes a damaged schema
        raise DamagedError(path, str(error)) from error
    except sqlite3.DatabaseError as error:
        if is_damage(error):
            raise DamagedError(path, str(error)) from error
        raise UserError(f"{path} cannot be used: {error}", "check the disk and who owns the file") from error
    except OSError as error:
        raise UserError(f"{path} cannot be used: {error.strerror}", "check the disk and its folder") from error


def file_at(path: Path) -> tuple[int, int] | None:
    """By which a file is known whatever its name; None where there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def is_damage(error: sqlite3.DatabaseError) -> bool:
    """Whether it is the file that is broken. What only the caller or the machine did wrong is none of its faults."""
    if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError) or "no such module" in str(error):
        return False
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None:
        return code & 0xFF not in NOT_DAMAGE  # the rest says more about the same
    return not str(error).startswith(tuple(NOT_DAMAGE.values()))


def key_of_user(user: str) -> str:
    """What stands for a user id, here and in the cache; nobody's is all zeros."""
    return user_key(user).hex()


def _open(path: Path) -> tuple[sqlite3.Connection, tuple[int, int] | None]:
    """The database, and which file that is."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # SQLite waits for others, but not while it gives a new file its write-ahead log: of two that do so at once, one
    # would be told that the file is locked. And a repair must not put other files in the place of this one and its log.
    with alone_in(path.parent):
        # SQLite gives its other files the mode of this one. A file that is there must not be opened by us: closing it
        # would take the locks that SQLite holds on it for other threads.
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        is_new = path.stat().st_size == 0
        database = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
        try:
            if is_new:  # it counts before the first table only, and writes to the disk every time
                database.execute("PRAGMA auto_vacuum = INCREMENTAL")
            database.execute("PRAGMA journal_mode = WAL").fetchall()
            database.execute("PRAGMA synchronous = FULL")  # a spool file goes once its messages are here
            database.execute("PRAGMA secure_delete = ON")  # what is forgotten should be gone
        except BaseException:
            database.close()
            raise
        return database, file_at(path)
