"""Sessions in the memory's file: older files grow, what was said is found, forgotten, saved from damage."""

from __future__ import annotations

import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pyrun.chat.export import as_json, as_markdown
from pyrun.chat.prompt import NOTE, choose
from pyrun.chat.sessions import NO_RESULT, Row, Session, SessionGoneError, SessionMovedError, Sessions
from pyrun.errors import UserError
from pyrun.memory.recall import UserMemory
from pyrun.memory.repair import repair
from pyrun.memory.schema import FIRST, MIGRATIONS, statements, version_of
from pyrun.memory.store import Memory, key_of_user
from pyrun.providers.events import Function

TOOL = Function("look", "Looks.", {"type": "object"})


def said(text: str, role: str = "user") -> Row:
    return Row({"role": role, "content": text}, 10)


def talked(sessions: Sessions, *texts: str) -> str:
    session = sessions.create([TOOL])
    roles = ("user", "assistant")
    sessions.append(session, [said(text, roles[index % 2]) for index, text in enumerate(texts)])
    return session.name


def test_a_memory_of_before_the_chat_gets_its_tables_and_loses_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    folder.mkdir()
    with sqlite3.connect(folder / "memory.db") as old:
        for statement in statements(FIRST):
            old.execute(statement)
        old.execute("INSERT INTO users(key) VALUES (?)", (key_of_user("alice"),))
        old.execute("PRAGMA user_version = 1")
    old.close()
    with Memory(folder) as memory:
        assert version_of(memory.database) == len(MIGRATIONS)
        assert memory.find_user(key_of_user("alice")) == 1
        sessions = Sessions(memory, "alice")
        assert sessions.load(talked(sessions, "Hello")).rows == [said("Hello")]


def test_what_is_loaded_is_what_was_said_to_the_byte(memory: Memory) -> None:
    sessions = Sessions(memory, "")
    odd = 'tab\tline\nquote" half \ud800 NUL \0 wide 日本 e\u0301'
    session = sessions.create([TOOL])
    sessions.append(session, [said(odd)])
    again = sessions.load(session.name[:6])
    assert again.rows == session.rows
    assert again.tools == [TOOL]
    assert sessions.latest() == again


def test_sessions_are_found_by_words_and_each_user_has_their_own(memory: Memory) -> None:
    alice, bob = Sessions(memory, "alice"), Sessions(memory, "bob")
    first = talked(alice, "The Élan vital", "A philosopher said so.")
    second = talked(alice, "Something else")
    talked(bob, "The Élan vital")
    assert [one.name for one in alice.find()] == [second, first]
    assert [one.name for one in alice.find("élan PHILOSOPHER")] == [first]
    assert alice.find("nothing like it") == []
    with pytest.raises(UserError, match="no session"):
        bob.load(first)
    assert alice.said() == ["The Élan vital", "Something else"]


def test_taking_back_and_branching_leave_whole_sessions(memory: Memory) -> None:
    sessions = Sessions(memory, "")
    session = sessions.load(talked(sessions, "one", "two", "three", "four"))
    branch = sessions.branch(session)
    assert [row.message["content"] for row in sessions.truncate(session, 2)] == ["three", "four"]
    assert len(sessions.load(session.name).rows) == 2
    assert len(sessions.load(branch.name).rows) == 4
    assert "two" in as_markdown(session)
    assert '"two"' in as_json(session)


def test_forgetting_takes_sessions_along(memory: Memory) -> None:
    sessions = Sessions(memory, "alice")
    first, second = talked(sessions, "a secret"), talked(sessions, "another")
    other = Sessions(memory, "bob")
    kept = talked(other, "kept")
    own = UserMemory(memory, "alice")
    assert own.forget_conversation(first) == 1
    assert [one.name for one in sessions.find()] == [second]
    assert own.forget_all() == 1
    assert sessions.find() == []
    assert [one.name for one in other.find()] == [kept]
    assert b"a secret" not in memory.path.read_bytes()


def test_who_has_a_forgotten_session_open_writes_into_nobody_elses(memory: Memory) -> None:
    alice, bob = Sessions(memory, "alice"), Sessions(memory, "bob")
    open_one = alice.load(talked(alice, "a secret"))
    UserMemory(memory, "alice").forget_conversation(open_one.name)
    changes = (
        lambda: alice.append(open_one, [said("another secret")]),
        lambda: alice.truncate(open_one, 0),
        lambda: alice.set_tools(open_one, []),
        lambda: alice.set_archived(open_one, 0),
        lambda: alice.rename(open_one, "secret"),
    )
    for change in changes:
        with pytest.raises(SessionGoneError):
            change()
    other = bob.load(talked(bob, "hello"))
    assert other.id == open_one.id
    for change in changes:
        with pytest.raises(SessionGoneError):
            change()
    assert bob.load(other.name) == other
    bob.append(other, [said("and more")])


@pytest.mark.parametrize("change", ["goes on", "takes back", "says something else"])
def test_of_two_chats_with_one_session_the_one_that_is_behind_changes_nothing(change: str, memory: Memory) -> None:
    sessions = Sessions(memory, "")
    first = sessions.load(talked(sessions, "one", "two"))
    behind = sessions.load(first.name)
    time.sleep(0.002)  # messages are told apart by their time
    if change != "goes on":
        sessions.truncate(first, 1)
    if change != "takes back":
        sessions.append(first, [said("something else", "assistant")])
    for late in (
        lambda: sessions.append(behind, [said("late")]),
        lambda: sessions.truncate(behind, 0),
        lambda: sessions.set_archived(behind, 1),
    ):
        with pytest.raises(SessionMovedError) as refused:
            late()
        assert f"/sessions {first.name[:8]}" in (refused.value.hint or "")
    assert sessions.load(first.name) == first
    branch = sessions.branch(behind)
    sessions.append(branch, [said("three")])
    spoken = [row.message["content"] for row in sessions.load(branch.name).rows]
    assert spoken == ["one", "two", "late", "three"], "what this chat has"
    again = sessions.load(first.name)
    sessions.append(again, [said("on")])
    assert sessions.load(first.name).rows == [*first.rows, said("on")]


@pytest.mark.parametrize(
    "change",
    [
        lambda sessions, session: sessions.append(session, [said("three")]),
        lambda sessions, session: sessions.truncate(session, 1),
    ],
    ids=["append", "truncate"],
)
def test_ctrl_c_leaves_the_same_in_memory_as_on_the_disk(
    change: Callable[[Sessions, Session], object], memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = memory.writing

    @contextmanager
    def interrupted() -> Iterator[sqlite3.Connection]:
        with write() as database:
            yield database
        signal.raise_signal(signal.SIGINT)

    sessions = Sessions(memory, "")
    session = sessions.load(talked(sessions, "one", "two"))
    handler = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(memory, "writing", interrupted)
        change(sessions, session)
    assert len(session.rows) != 2
    assert sessions.load(session.name) == session
    sessions.append(session, [said("on")])
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_session_with_a_gap_in_its_numbers_goes_on(memory: Memory) -> None:
    sessions = Sessions(memory, "")
    session = sessions.load(talked(sessions, "one", "two", "three", "four"))
    with memory.writing() as database:
        database.execute("DELETE FROM session_messages WHERE session = ? AND seq IN (1, 2)", (session.id,))
    session = sessions.load(session.name)
    sessions.append(session, [said("five"), said("six", "assistant")])
    assert [row.message["content"] for row in sessions.load(session.name).rows] == ["one", "four", "five", "six"]
    sessions.truncate(session, 2)
    assert [row.message["content"] for row in sessions.load(session.name).rows] == ["one", "four"]


def test_a_call_without_a_result_gets_one_wherever_it_stands() -> None:
    def calls(*ids: str) -> Row:
        return Row({"role": "assistant", "content": "", "tool_calls": [{"id": one} for one in ids]}, 10)

    result = Row({"role": "tool", "tool_call_id": "a", "content": "done"}, 10)
    rows = [said("q"), calls("a", "b"), result, said("q"), calls("a"), said("more"), calls("c")]
    prompt = choose(rows, 1_000)
    assert [message.get("tool_call_id", message["role"]) for message in prompt.messages] == [
        *("user", "assistant", "a", "b", "user", "assistant", "a", "user", "assistant", "c")
    ]
    assert [m["content"] for m in prompt.messages if m["role"] == "tool"] == ["done", *[NO_RESULT] * 3]
    assert choose(rows[:3], 1_000).messages == prompt.messages[:4], "what is sent later begins with it"


def test_the_oldest_sessions_go_where_there_is_no_room(tmp_path: Path) -> None:
    with Memory(tmp_path / "memory", max_bytes=1_000_000) as memory:
        sessions = Sessions(memory, "")
        names = [talked(sessions, "x" * 200_000) for _ in range(8)]
        assert memory.prune() > 0
        left = [one.name for one in sessions.find()]
        assert left == names[: -len(left) - 1 : -1]
        assert 1 <= len(left) <= 4


def test_sessions_are_saved_from_a_broken_file(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    with Memory(folder) as memory:
        sessions = Sessions(memory, "")
        name = talked(sessions, "one", "two")
        UserMemory(memory, "").set_fact("a", "b")
        for number in range(50):
            UserMemory(memory, "").store(f"question {number}", "x" * 50)
    data = bytearray((folder / "memory.db").read_bytes())
    at = data.rindex(b"question 7")
    data[at - at % 4096 : at - at % 4096 + 64] = b"\xff" * 64
    (folder / "memory.db").write_bytes(data)
    assert repair(folder).problems
    with Memory(folder) as memory:
        assert [row.message["content"] for row in Sessions(memory, "").load(name).rows] == ["one", "two"]


def test_the_note_stands_in_the_first_message_that_is_left() -> None:
    rows = [Row({"role": "system", "content": "Be brief."}, 10)]
    for number in range(10):
        rows += [Row({"role": "user", "content": f"q{number}"}, 100), Row({"role": "assistant", "content": "a"}, 20)]
    prompt = choose(rows, 1_000)
    assert prompt.messages[0] == rows[0].message
    assert prompt.messages[1]["content"].startswith(NOTE)
    assert prompt.messages[2:] == [row.message for row in rows[-len(prompt.messages) + 2 :]]
    assert prompt.dropped == list(range(1, 1 + len(prompt.dropped)))
    assert choose(rows[:5], 1_000).messages == [row.message for row in rows[:5]]
