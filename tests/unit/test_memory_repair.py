"""A memory that is damaged: it is seen, what can be read is saved, and nothing that was forgotten comes back."""

from __future__ import annotations

import errno
import sqlite3
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from memories import TALK, archive, found_texts

from pyrun import console
from pyrun.chat.sessions import Row, Sessions
from pyrun.errors import UserError
from pyrun.memory import repair as memory_repair
from pyrun.memory import store
from pyrun.memory.intake import take_in
from pyrun.memory.recall import UserMemory
from pyrun.memory.repair import check, repair
from pyrun.memory.schema import words_table
from pyrun.memory.spool import Record, files, write_spool
from pyrun.memory.store import Entry, Memory, key_of_user


def test_a_damaged_index_is_seen_and_made_anew(memory: Memory) -> None:
    archive(memory, ["something to find"])
    user = memory.find_user(key_of_user(""))
    assert user is not None
    table = words_table(user)
    memory.database.execute(f"INSERT INTO {table}({table}) VALUES ('delete-all')")
    assert any("does not fit" in problem for problem in check(memory))
    memory.close()
    done = repair(memory.folder)
    assert done.problems != []
    assert done.kept is None
    with Memory(memory.folder) as again:
        assert check(again) == []
        assert found_texts(UserMemory(again, ""), "find") == ["something to find"]


def test_of_a_broken_file_what_can_be_read_is_saved(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        archive(memory, [f"message {n} " + "padding " * 40 for n in range(400)], "alice")
        UserMemory(memory, "alice").set_fact("a", "b")
        path = memory.path
    data = bytearray(path.read_bytes())
    # Pages of the entries: those with text of messages in them.
    hit = [at for at in range(4096 * 4, len(data), 4096) if b"padding padding" in data[at : at + 4096]][10:14]
    for at in hit:
        data[at : at + 2048] = b"\xff" * 2048
    path.write_bytes(data)
    done = repair(tmp_path)
    assert done.problems != []
    assert done.kept is not None
    assert done.kept.exists()
    with Memory(tmp_path) as memory:
        assert check(memory) == []
        n_left = UserMemory(memory, "alice").counts()["message"]
        assert n_left == done.n_saved - UserMemory(memory, "alice").counts()["fact"]
        assert 300 <= n_left < 400


@pytest.mark.parametrize("content", [b"not a database at all" * 1000, b"SQLite format 3\0" + b"\0" * 5000])
def test_a_file_that_is_no_database_is_refused_with_a_remedy_and_set_aside_by_repair(
    content: bytes, tmp_path: Path
) -> None:
    (tmp_path / "memory.db").write_bytes(content)
    with pytest.raises(UserError) as refused:
        Memory(tmp_path)
    assert "--repair" in (refused.value.hint or "")
    assert repair(tmp_path).kept is not None
    with Memory(tmp_path) as memory:
        assert check(memory) == []


def test_a_file_that_is_not_damaged_is_no_matter_for_repair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "BUSY_SECONDS", 0.1)
    newer, locked, unreadable = (tmp_path / name for name in ("newer", "locked", "unreadable"))
    with Memory(newer) as memory:
        memory.database.execute("PRAGMA user_version = 99")
    with Memory(locked) as memory:
        archive(memory, ["kept"])
    (unreadable / "memory.db").mkdir(parents=True)
    with closing(sqlite3.connect(locked / "memory.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for folder, why in ((newer, "version 99"), (locked, "locked"), (unreadable, "unable to open")):
            with pytest.raises(UserError, match=why):
                repair(folder)
            assert list(folder.glob("*damaged*")) == []
    with Memory(locked) as memory:
        assert found_texts(UserMemory(memory, ""), "kept") == ["kept"]


def test_who_has_the_memory_open_while_it_is_repaired_loses_nothing_and_is_told(tmp_path: Path) -> None:
    with Memory(tmp_path) as held:
        own = UserMemory(held, "")
        own.set_fact("before", "kept")
        break_index_of_entries(held.path)
        assert repair(tmp_path).kept is not None
        told = "repaired or moved while this program had it open"
        with pytest.raises(UserError, match=told) as refused:
            own.set_fact("after", "lost")
        assert "start it again" in (refused.value.hint or "")
        with pytest.raises(UserError, match=told):
            own.search("kept")
        with pytest.raises(UserError, match=told):
            archive(held, ["left meanwhile"])
        assert len(list(files(held.spool))) == 1
    with Memory(tmp_path) as memory:
        take_in(memory)
        assert found_texts(UserMemory(memory, ""), "meanwhile") == ["left meanwhile"]
        assert [fact.text for fact in UserMemory(memory, "").facts()] == ["before"]
        assert check(memory) == []


def test_who_writes_into_a_file_that_was_set_aside_is_told_and_the_spool_keeps_what_it_was(tmp_path: Path) -> None:
    """A broken head keeps a repair from taking the write lock, and SQLite from nothing: it has read that before."""
    with Memory(tmp_path) as held:
        archive(held, ["before"])
        write_spool(held.spool, key_of_user(""), TALK, [Record(1, {"role": "user", "content": "meanwhile"})])
        held.database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        insert = held.insert

        def slowly(user: int, entry: Entry, key: bytes) -> bool:
            with held.path.open("r+b") as file:
                file.write(bytes(100))
            assert repair(tmp_path).kept is not None
            return insert(user, entry, key)

        held.insert = slowly  # type: ignore[method-assign]
        with pytest.raises(UserError, match="repaired or moved while this program had it open"):
            take_in(held)
        assert len(list(files(held.spool))) == 1
    with Memory(tmp_path) as memory:
        take_in(memory)
        assert found_texts(UserMemory(memory, ""), "meanwhile") == ["meanwhile"]


def test_of_two_repairs_one_waits_and_finds_nothing_left_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Memory(tmp_path) as memory:
        archive(memory, ["kept"])
        path = memory.path
    break_index_of_entries(path)
    salvage = memory_repair._salvage
    is_waiting = threading.Event()
    seconds: list[memory_repair.Repaired] = []

    @contextmanager
    def waiting(_what: str) -> Iterator[None]:
        is_waiting.set()
        yield

    def beside_another(broken: Path, folder: Path, done: memory_repair.Repaired) -> None:
        second.start()
        assert is_waiting.wait(60)
        salvage(broken, folder, done)

    second = threading.Thread(target=lambda: seconds.append(repair(tmp_path)))
    monkeypatch.setattr(console, "waiting", waiting)
    monkeypatch.setattr(memory_repair, "_salvage", beside_another)
    assert repair(tmp_path).n_saved == 1
    second.join()
    assert seconds == [memory_repair.Repaired()]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with Memory(tmp_path) as memory:
        assert found_texts(UserMemory(memory, ""), "kept") == ["kept"]


def test_a_repair_that_was_interrupted_is_told_of_and_ended_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Memory(tmp_path) as memory:
        archive(memory, [f"message {n}" for n in range(20)])
        UserMemory(memory, "").set_fact("old", "value")
        sessions = Sessions(memory, "")
        for title in ("first", "second"):
            sessions.append(sessions.create([]), [Row({"role": "user", "content": title}, 1)])
        path = memory.path
    break_index_of_entries(path)
    monkeypatch.setattr(memory_repair, "AT_ONCE", 5)
    insert = Memory.insert

    def interrupted(self: Memory, user: int, entry: Entry, key: bytes) -> bool:
        if entry.text == "message 12":
            raise KeyboardInterrupt
        return insert(self, user, entry, key)

    monkeypatch.setattr(Memory, "insert", interrupted)
    with pytest.raises(KeyboardInterrupt):
        repair(tmp_path)
    with Memory(tmp_path) as memory:
        own = UserMemory(memory, "")
        assert own.counts()["message"] == 10
        assert ["interrupted" in problem for problem in check(memory)] == [True]
        write_spool(memory.spool, key_of_user(""), TALK, [Record(1, {"role": "user", "content": "meanwhile"})])
        assert "interrupted" in take_in(memory).trouble
        with pytest.raises(UserError, match="interrupted"):
            own.forget_all()
        own.set_fact("old", "newer")
        sessions = Sessions(memory, "")
        sessions.append(sessions.create([]), [Row({"role": "user", "content": "new"}, 1)])
    monkeypatch.setattr(Memory, "insert", insert)
    break_index_of_entries(path)  # Now there are two.
    done = repair(tmp_path)
    assert done.n_left_out == 0
    assert len([path for path in tmp_path.glob("memory.db.damaged-*") if path.suffix.count("-") == 1]) == 2
    with Memory(tmp_path) as memory:
        assert check(memory) == []
        assert take_in(memory).n_new == 1
        own = UserMemory(memory, "")
        assert sorted(e.text for e in own.show()) == sorted(["meanwhile", "old", *(f"message {n}" for n in range(20))])
        assert [(fact.text, fact.answer) for fact in own.facts()] == [("old", "newer")]
        assert {found.title for found in Sessions(memory, "").find()} == {"first", "second", "new"}


def test_nobody_can_write_while_a_file_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Memory(tmp_path) as memory:
        archive(memory, ["kept"])
        path = memory.path
    break_index_of_entries(path)
    rename = Path.rename
    refused = []

    def watched(source: Path, target: str) -> Path:
        if source == path:
            with closing(sqlite3.connect(path, timeout=0)) as other, pytest.raises(sqlite3.OperationalError) as error:
                other.execute("BEGIN IMMEDIATE")
            refused.append(str(error.value))
        return rename(source, target)

    monkeypatch.setattr(Path, "rename", watched)
    assert repair(tmp_path).n_saved == 1
    assert refused == ["database is locked"]


def test_what_is_set_aside_later_counts_as_newer_though_the_clock_was_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repair that was interrupted left one broken file, and then the new one breaks as well."""
    clock = time.time
    for hours, value in ((0, "old"), (1, "new")):
        with Memory(tmp_path) as memory:
            archive(memory, ["kept"])
            UserMemory(memory, "").set_fact("home", value)
            path = memory.path
        break_index_of_entries(path)
        monkeypatch.setattr(time, "time", lambda hours=hours: clock() - hours * 3600)
        memory_repair._set_aside(tmp_path)
    assert repair(tmp_path).n_left_out == 0
    with Memory(tmp_path) as memory:
        assert [fact.answer for fact in UserMemory(memory, "").facts()] == ["new"]


def test_a_folder_that_cannot_be_read_keeps_the_spool_and_refuses_to_forget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Memory(tmp_path) as memory:
        write_spool(memory.spool, key_of_user(""), TALK, [Record(1, {"role": "user", "content": "kept"})])
        with monkeypatch.context() as patched:
            patched.setattr(Path, "iterdir", no_more_files)
            assert "Too many open files" in take_in(memory).trouble
            with pytest.raises(UserError, match="Too many open files"):
                UserMemory(memory, "").forget_all()
        assert take_in(memory).n_new == 1


def no_more_files(_folder: Path) -> Iterator[Path]:
    raise OSError(errno.EMFILE, "Too many open files")


def change(path: Path, *statements: str) -> None:
    """What a damaged disk might leave, without asking the memory."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA writable_schema = ON")
        for statement in statements:
            database.execute(statement)
        database.commit()


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM words_1_config",
        "PRAGMA user_version = 0",
        "DELETE FROM sqlite_master WHERE name = 'words_1'",
        "UPDATE sqlite_master SET sql = CAST(x'63726561746520ff' AS TEXT) WHERE name = 'entries_by_age'",
        "UPDATE sqlite_sequence SET seq = 1 << 60",
        "UPDATE entries SET text = CAST(x'68656c6cff' AS TEXT) WHERE id = 7",
    ],
)
def test_whatever_is_damaged_is_mended_and_can_be_forgotten(damage: str, tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        archive(memory, [f"message {n}" for n in range(20)])
        path = memory.path
    change(path, damage)
    if "sqlite_sequence" in damage:  # alone it harms nobody
        break_index_of_entries(path)
    done = repair(tmp_path)
    assert done.problems != []
    assert (done.kept is None, done.n_saved) in ((True, 0), (False, 20))
    with Memory(tmp_path, max_bytes=1) as memory:
        assert check(memory) == []
        own = UserMemory(memory, "")
        texts = [entry.text for entry in own.show()]
        assert len(texts) == 20
        assert "hell\ufffd" in texts if "68656c6cff" in damage else "message 6" in texts
        assert own.forget_entry(own.show()[0].id) == 1
        assert memory.prune()
        assert own.show() == []


def test_rows_that_make_no_sense_are_left_out_and_counted(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        archive(memory, [f"message {n}" for n in range(20)])
        with memory.writing() as database:
            for number in (1, 2):
                database.execute("INSERT INTO sessions VALUES (?, 1, ?, '', '[]', 0, 1, 1)", (number, f"chat {number}"))
                rows = [(number, seq) for seq in range(4)]
                database.executemany("INSERT INTO session_messages VALUES (?, ?, '{}', 1, 1, '{}')", rows)
        path = memory.path
    change(
        path,
        "UPDATE sqlite_master SET sql = replace(sql, ' NOT NULL', '') WHERE type = 'table' AND sql NOT LIKE '%fts5%'",
        "UPDATE sqlite_master SET sql = replace(sql, ' UNIQUE', ''), type = 'table' WHERE name = 'sessions'",
        "DELETE FROM sqlite_master WHERE name LIKE 'sqlite_autoindex_sessions%'",
    )
    change(
        path,
        "UPDATE entries SET text = NULL WHERE id = 3",
        "UPDATE entries SET key = NULL WHERE id = 4",
        "UPDATE entries SET user = 99 WHERE id = 5",
        "UPDATE session_messages SET message = NULL WHERE session = 1 AND seq = 2",
        "UPDATE sessions SET name = 'chat 1'",
    )
    break_index_of_entries(path)
    done = repair(tmp_path)
    # Of the sessions: the third and fourth message of one, and the other, which has the same name.
    assert (done.n_saved, done.n_left_out) == (17, 3 + 2 + 5)
    with Memory(tmp_path) as memory:
        assert check(memory) == []
        assert UserMemory(memory, "").counts()["message"] == 17
        assert memory.database.execute("SELECT seq FROM session_messages").fetchall() == [(0,), (1,)]


@pytest.mark.parametrize(
    ("text", "damaged"),
    [
        *((text, False) for text in store.NOT_DAMAGE.values()),
        ("no such module: fts5", False),
        ("database disk image is malformed", True),
        ("no such table: words_1", True),
        ("Could not decode to UTF-8 column 'text'", True),
    ],
)
def test_damage_is_known_by_its_words_where_errors_have_no_code(text: str, damaged: bool) -> None:
    error = sqlite3.OperationalError(text)
    assert not hasattr(error, "sqlite_errorcode")
    assert store.is_damage(error) is damaged


def test_a_full_disk_is_no_damage(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        own = UserMemory(memory, "")
        own.set_fact("a", "b")
        memory.database.execute(f"PRAGMA max_page_count = {memory.database.execute('PRAGMA page_count').fetchone()[0]}")
        with pytest.raises(UserError, match="disk is full") as refused:
            own.set_fact("c", "long " * 10_000)
        assert not isinstance(refused.value, store.DamagedError)
        assert [fact.text for fact in own.facts()] == ["a"]


def break_index_of_entries(path: Path) -> None:
    """Says that another table's pages are those of the index: SQLite finds that in no reading of the entries."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA writable_schema = ON")
        database.execute(
            "UPDATE sqlite_master SET rootpage = (SELECT rootpage FROM sqlite_master WHERE name = 'sessions_by_use') "
            "WHERE name = 'entries_by_age'"
        )
        database.commit()


def test_of_a_broken_file_what_was_forgotten_stays_so_and_sessions_are_saved_without_entries(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        with memory.writing() as database:
            user = memory.ensure_user(key_of_user("alice"))
            database.execute("INSERT INTO sessions(user, name, created, used) VALUES (?, 'a chat', 1, 1)", (user,))
            database.execute("INSERT INTO gone VALUES (?, x'0102', 5)", (user,))
        assert database.execute("SELECT * FROM sqlite_sequence").fetchall() == []
        path = memory.path
    break_index_of_entries(path)
    done = repair(tmp_path)
    assert done.problems != []
    assert (done.n_saved, done.kept is not None) == (0, True)
    with Memory(tmp_path) as memory:
        assert check(memory) == []
        assert memory.was_removed(memory.find_user(key_of_user("alice")) or 0, b"\1\2")
        assert memory.database.execute("SELECT name FROM sessions").fetchall() == [("a chat",)]
