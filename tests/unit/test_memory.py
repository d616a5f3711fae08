"""The memory: search, facts, users apart, limits, versions, and the commands."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest
from click.testing import CliRunner, Result
from helpers import ROOT
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memories import NASTY, TALK, archive, found_texts

from pyrun.cli import memory as cli_memory
from pyrun.cli.main import cli
from pyrun.errors import UserError
from pyrun.memory import store
from pyrun.memory.intake import Taken, take_in
from pyrun.memory.limit import memory_limit
from pyrun.memory.recall import UserMemory
from pyrun.memory.repair import check
from pyrun.memory.schema import MIGRATIONS, migrate, version_of
from pyrun.memory.spool import Record, write_spool
from pyrun.memory.store import Entry, Memory, key_of_user
from pyrun.memory.transfer import Imported, export_lines, import_lines
from pyrun.memory.watch import SpoolWatch

DAY = 86_400_000

BESIDE = """
import sys
from pathlib import Path
from pyrun.memory.recall import UserMemory
from pyrun.memory.repair import check
from pyrun.memory.store import Memory
for number in range(10):
    with Memory(Path(sys.argv[1])) as memory:
        UserMemory(memory, "").store(f"question {number}", "answer")
"""


def test_messages_pairs_and_facts_are_found_by_their_words(memory: Memory) -> None:
    archive(memory, ["The tower in Paris has stairs.", "Bread needs flour."])
    own = UserMemory(memory, "")
    own.store("How tall is the tower?", "330 metres", "chat")
    own.set_fact("home town", "Paris", "told in chat")
    assert {one.entry.kind for one in own.search("tower")} == {"message", "pair"}
    assert {one.entry.kind for one in own.search("paris")} == {"message", "fact"}
    assert found_texts(own, "flour") == ["Bread needs flour."]
    assert found_texts(own, "metres") == ["How tall is the tower?"]
    assert own.search("tower stairs")[0].entry.text == "The tower in Paris has stairs."
    assert "[tower]" in own.search("tower stairs")[0].snippet
    assert own.search("zebra") == []


def test_among_equals_the_recent_one_is_first_but_words_count_more(memory: Memory) -> None:
    own = UserMemory(memory, "")
    now = int(time.time() * 1000)
    with memory.writing() as database:
        user = memory.ensure_user(own.key)
        for number, (text, days) in enumerate(
            [("the red bicycle of my aunt", 300), ("the red bicycle of my niece", 1), ("some bicycle, once", 0)]
        ):
            entry = Entry("message", text, at=now - days * DAY)
            memory.insert(user, entry, bytes([number]))
        assert database.in_transaction
    assert found_texts(own, "red bicycle") == [
        "the red bicycle of my niece",
        "the red bicycle of my aunt",
        "some bicycle, once",
    ]


def test_two_users_with_the_same_words_find_only_their_own(memory: Memory) -> None:
    for name in ("alice", "bob"):
        archive(memory, [f"the password of {name} is swordfish"] * 1, name)
        UserMemory(memory, name).set_fact("pet", f"{name}'s cat")
        UserMemory(memory, name).store("Where is the swordfish?", f"with {name}")
    for name, other in (("alice", "bob"), ("bob", "alice"), ("", "alice"), ("carol", "bob")):
        own = UserMemory(memory, name)
        everything = json.dumps([str(one) for one in own.search("password swordfish cat pet with", 100)])
        everything += str(own.show()) + str(own.show(TALK)) + str(own.facts()) + str(own.conversations())
        everything += "".join(export_lines(own))
        assert other not in everything
        assert (name in everything and name != "") == (name in ("alice", "bob"))
    before = UserMemory(memory, "alice").search("password swordfish")
    archive(memory, [f"swordfish {n}" for n in range(50)], "bob", "00000000000000bb")
    after = UserMemory(memory, "alice").search("password swordfish")
    assert [one.entry for one in after] == [one.entry for one in before]
    # Their scores do not tell how often another user wrote the word, but for the moments that passed.
    assert [one.score for one in after] == pytest.approx([one.score for one in before], rel=1e-4)
    assert UserMemory(memory, "alice").forget_entry(UserMemory(memory, "bob").show()[0].id) == 0


@pytest.mark.parametrize("text", NASTY, ids=range(len(NASTY)))
def test_nasty_text_is_searched_stored_and_found_without_an_error(text: str, memory: Memory) -> None:
    archive(memory, ["a plain message", "x AND y", 'say "hello"', "v1.2.3", "🦙 and friends", "日本語のテキスト"])
    own = UserMemory(memory, text)
    assert own.search(text) == []
    anonymous = UserMemory(memory, "")
    assert len(anonymous.search(text, 3)) <= 3
    if text.strip():
        anonymous.set_fact("nasty", text)
        anonymous.store(text, text)
        stored = anonymous.fact("nasty")
        assert stored is not None
        assert [one.entry.kind for one in anonymous.search(stored.answer)] != []
    assert check(memory) == []


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=60))
def test_any_text_is_a_query(text: str, memory: Memory) -> None:
    archive(memory, ["one message that is always there"])
    UserMemory(memory, "").search(text)
    UserMemory(memory, "").fact(text)


@pytest.mark.parametrize(
    ("query", "expected"),
    [("🦙", "🦙 and friends"), ("テキスト", "日本語のテキスト"), ("café", "the CAFE on the corner"), ("+/=", "a+/=b")],
)
def test_signs_other_writing_and_accents_are_found(query: str, expected: str, memory: Memory) -> None:
    archive(memory, ["🦙 and friends", "日本語のテキスト", "the CAFE on the corner", "a+/=b"])
    assert found_texts(UserMemory(memory, ""), query) == [expected]


def test_a_fact_has_one_value_and_is_forgotten_whole(memory: Memory) -> None:
    own = UserMemory(memory, "")
    own.set_fact("colour", "red")
    own.set_fact(" colour ", "blue", "chat")
    fact = own.fact("colour")
    assert fact is not None
    assert (fact.text, fact.answer, fact.source) == ("colour", "blue", "chat")
    assert own.search("red") == []
    assert own.forget_fact("colour")
    assert not own.forget_fact("colour")
    assert own.fact("colour") is None
    assert own.search("blue") == []
    own.set_fact("colour", "green")
    assert [f.answer for f in own.facts()] == ["green"]
    assert check(memory) == []


def on_disk(memory: Memory) -> bytes:
    """All that somebody with the disk can read; what is open in SQLite is not opened by us."""
    return b"".join(
        subprocess.run(["cat", path], capture_output=True, check=True).stdout
        for path in memory.folder.glob("memory.db*")
        if not path.name.endswith("-shm")
    )


@pytest.mark.parametrize("forgotten", ["a fact", "an entry", "a conversation", "everything"])
def test_what_is_forgotten_is_not_on_the_disk_any_more(forgotten: str, memory: Memory) -> None:
    own = UserMemory(memory, "")
    archive(memory, ["what stays"], conversation="00000000000000bb")
    archive(memory, ["the word xylophonist is rare"])
    own.set_fact("jukebox", "quagmire")
    own.set_fact("jukebox", "vexation")
    assert all(word in on_disk(memory) for word in (b"xylophonist", b"jukebox", b"quagmire", b"vexation"))
    gone: tuple[bytes, ...]
    if forgotten == "a fact":
        gone = (b"jukebox", b"quagmire", b"vexation")
        assert own.forget_fact("jukebox")
    elif forgotten == "an entry":
        gone = (b"xylophonist",)
        assert own.forget_entry(own.search("xylophonist")[0].entry.id) == 1
    elif forgotten == "a conversation":
        gone = (b"xylophonist",)
        assert own.forget_conversation(TALK) == 1
    else:
        gone = (b"jukebox", b"quagmire", b"vexation", b"xylophonist")
        assert own.forget_all() == 3
    left = on_disk(memory)
    assert [word for word in gone if word in left] == []
    assert check(memory) == []
    assert found_texts(own, "stays") == ([] if forgotten == "everything" else ["what stays"])


def test_an_index_that_is_merged_in_many_steps_has_nothing_of_what_was_forgotten(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "MERGED_AT_ONCE", 1)
    for batch in range(6):
        texts = [f"word{batch}x{n} " * 5 + "common" for n in range(300)]
        archive(memory, [*texts, f"xylophonist{batch}"], conversation=f"{batch:016x}")
    own = UserMemory(memory, "")
    assert own.forget_entry(own.search("xylophonist0")[0].entry.id) == 1
    assert b"xylophonist0" not in on_disk(memory)
    assert own.counts()["message"] == 6 * 301 - 1
    assert check(memory) == []


def test_while_another_program_reads_what_was_forgotten_is_said_to_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "BUSY_SECONDS", 0.1)
    with Memory(tmp_path) as memory:
        own = UserMemory(memory, "")
        own.set_fact("jukebox", "quagmire")
        with closing(sqlite3.connect(memory.path, isolation_level=None)) as other:
            other.execute("BEGIN")
            other.execute("SELECT * FROM entries").fetchall()
            with pytest.raises(UserError, match=r"memory\.db-wal as long as another program reads") as told:
                own.forget_fact("jukebox")
            assert "run this again" in (told.value.hint or "")
            assert own.facts() == []
            assert b"quagmire" in on_disk(memory)
        assert not own.forget_fact("jukebox"), "nothing is left to forget"
        assert b"quagmire" not in on_disk(memory)


def test_forgetting_that_was_interrupted_is_done_when_it_is_asked_for_again(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = UserMemory(memory, "")
    own.set_fact("jukebox", "quagmire")
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Memory, "erase_removed", Mock(side_effect=KeyboardInterrupt))
        own.forget_fact("jukebox")
    assert b"quagmire" in on_disk(memory)
    assert not own.forget_fact("jukebox")
    assert b"quagmire" not in on_disk(memory)
    assert not UserMemory(memory, "nobody").forget_fact("jukebox")


@pytest.mark.parametrize(("name", "value"), [("", "x"), ("x", " "), ("n" * 201, "x"), ("x", "y" * (1 << 20) + "z")])
def test_facts_have_limits(name: str, value: str, memory: Memory) -> None:
    with pytest.raises(UserError):
        UserMemory(memory, "").set_fact(name, value)


def test_the_limit_is_kept_and_the_oldest_messages_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "PRUNE_SECONDS", 60)
    with Memory(tmp_path, max_bytes=300_000) as memory:
        own = UserMemory(memory, "")
        own.set_fact("kept", "for ever")
        for batch in range(12):
            texts = [f"batch {batch} number {n} " + f"filler{batch}x{n} " * 20 for n in range(80)]
            archive(memory, texts, conversation=f"{batch:016x}")
            assert sum(path.stat().st_size for path in tmp_path.glob("memory.db")) <= 300_000 * 1.15
            assert memory.used_bytes() <= 300_000
        kept = [entry.conversation for entry in own.show(limit=10_000) if entry.kind == "message"]
        assert f"{11:016x}" in kept
        assert f"{0:016x}" not in kept
        assert [fact.answer for fact in own.facts()] == ["for ever"]
        assert check(memory) == []


def fill(memory: Memory) -> None:
    """About 1.5 MB of the user old's, and then a little of the user new's."""
    for batch in range(10):
        texts = [f"old {batch} {n} " + " ".join(f"word{(n * k) % 997}" for k in range(1, 40)) for n in range(200)]
        archive(memory, texts, "old", f"{batch:016x}")
        time.sleep(0.002)  # the messages of a file have its time
    archive(memory, [f"new {n}" for n in range(100)], "new")


def test_pruning_merges_once_and_only_the_indexes_that_lost_something(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "PRUNE_SECONDS", 60)
    fill(memory)
    monkeypatch.setattr(memory, "max_bytes", memory.used_bytes() - 1)
    statements: list[str] = []
    memory.database.set_trace_callback(statements.append)
    assert memory.prune()
    memory.database.set_trace_callback(None)
    merges = [one for one in statements if "VALUES ('merge'" in one]
    assert [one for one in merges if "words_1(" not in one] == []
    assert len(merges) <= 3
    assert len([one for one in statements if one.startswith("DELETE FROM gone")]) == 1
    assert 0.8 < memory.used_bytes() / memory.max_bytes <= 0.95
    assert check(memory) == []


def test_pruning_goes_on_in_the_next_call_until_the_limit_is_kept(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"PRUNE_SECONDS": 0, "REMOVED_AT_ONCE": 20_000, "MERGED_AT_ONCE": 20}.items():
        monkeypatch.setattr(store, name, value)
    fill(memory)
    limit = memory.used_bytes() - 1
    n_calls = 1
    with Memory(memory.folder, limit) as first:
        assert first.prune()
        assert first.database.execute("SELECT merging FROM pruning").fetchall() == [(0,)], "one step is not enough"
    while n_calls < 200:
        with Memory(memory.folder, limit) as again:
            n_calls += 1
            if not again.prune():
                break
        archive(memory, [f"said meanwhile {n_calls}"], "new", f"{n_calls:016x}")
    assert 10 < n_calls < 200
    assert 0.8 * limit < memory.used_bytes() <= limit
    assert memory.database.execute("SELECT * FROM pruning").fetchall() == []
    assert found_texts(UserMemory(memory, "new"), "meanwhile 2") != []
    assert check(memory) == []


def test_a_lower_limit_takes_no_more_than_it_must_and_the_disk_gets_its_room_back(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "PRUNE_SECONDS", 60)
    fill(memory)
    memory.max_bytes = memory.used_bytes() // 2
    assert memory.prune()
    assert 0.7 * memory.max_bytes < memory.used_bytes() <= memory.file_bytes() <= memory.max_bytes


def test_the_watch_goes_on_with_pruning_when_nothing_new_comes(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "PRUNE_SECONDS", 0)
    fill(memory)
    limit = memory.used_bytes() - 1
    write_spool(memory.spool, key_of_user("new"), TALK, [Record(500, {"content": "the last one"})])
    watch = SpoolWatch(memory.folder, limit, Mock())
    for _ in range(50):
        watch._look()
    assert memory.used_bytes() <= 0.95 * limit


@pytest.mark.parametrize(
    ("settings", "expected"),
    [("", 10**10), ('[memory]\nlimit = "20 GB"', 2 * 10**10), ('[memory]\nlimit = "5"', None)],
)
def test_the_limit_is_a_setting(settings: str, expected: int | None, tmp_path: Path) -> None:
    file = tmp_path / "llama-run.toml"
    file.write_text(settings)
    if expected is None:
        with pytest.raises(UserError, match="no limit"):
            memory_limit(file)
    else:
        assert memory_limit(file) == expected


def test_several_threads_and_programs_use_it_at_once(tmp_path: Path) -> None:
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(8):
                with Memory(tmp_path) as memory:
                    write_spool(
                        memory.spool, key_of_user(""), TALK, [Record(turn, {"content": f"{number} says {turn}"})]
                    )
                    take_in(memory)
                    own = UserMemory(memory, "")
                    own.set_fact(f"fact {number}", f"value {turn}")
                    assert own.search(f"says {turn}") != []
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    beside_us = subprocess.run([sys.executable, "-c", BESIDE, str(tmp_path)], cwd=ROOT)
    for thread in threads:
        thread.join()
    assert errors == []
    assert beside_us.returncode == 0
    with Memory(tmp_path) as memory:
        assert UserMemory(memory, "").counts() == {"message": 32, "pair": 10, "fact": 4}
        assert check(memory) == []


def test_a_file_of_the_first_version_opens_with_all_it_held(tmp_path: Path) -> None:
    """tests/golden/memory-1.sql was written by version 1, and stays as it is."""
    script = (ROOT / "tests" / "golden" / "memory-1.sql").read_text(encoding="utf-8")
    with sqlite3.connect(tmp_path / "memory.db") as database:
        database.executescript(script)
    database.close()
    with Memory(tmp_path) as memory:
        assert version_of(memory.database) == len(MIGRATIONS)
        own = UserMemory(memory, "alice")
        assert check(memory) == []
        assert found_texts(own, "bicycle") == ["My bicycle is called Rosinante."]
        assert [(fact.text, fact.answer) for fact in own.facts()] == [("colour", "red")]
        own.set_fact("colour", "blue")
        assert own.search("blue") != []


def test_migrations_run_in_order_once_and_a_failing_one_changes_nothing(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        archive(memory, ["kept"])
        steps = (
            *MIGRATIONS,
            "ALTER TABLE entries ADD COLUMN mood TEXT",
            "CREATE TABLE later(x); CREATE TABLE later(x)",
        )
        with pytest.raises(sqlite3.OperationalError):
            migrate(memory.database, steps)
        assert version_of(memory.database) == len(MIGRATIONS)
        assert "mood" not in [row[1] for row in memory.database.execute("PRAGMA table_info(entries)")]
        migrate(memory.database, steps[:-1])
        migrate(memory.database, steps[:-1])
        assert version_of(memory.database) == len(MIGRATIONS) + 1
        assert memory.database.execute("SELECT text, mood FROM entries").fetchall() == [("kept", None)]


def test_a_file_of_a_later_version_is_left_alone(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.database.execute("PRAGMA user_version = 99")
    with pytest.raises(UserError, match="version 99"):
        Memory(tmp_path)


def test_an_export_comes_in_again_and_nothing_twice(memory: Memory, tmp_path: Path) -> None:
    archive(memory, ["one", "two"], "alice")
    alice = UserMemory(memory, "alice")
    alice.store("q", "a")
    alice.set_fact("k", "v")
    lines = list(export_lines(alice))
    with Memory(tmp_path / "other") as other:
        bob = UserMemory(other, "bob")
        assert import_lines(bob, lines).n_new == 4
        assert import_lines(bob, lines).n_new == 0
        assert list(export_lines(bob)) == lines
        assert found_texts(bob, "two") == ["two"]
        # What is imported is known when a spool brings it.
        archive(other, ["one", "two"], "bob")
        assert bob.counts() == {"message": 2, "pair": 1, "fact": 1}


def test_of_two_values_of_a_fact_the_newer_one_stays_and_the_import_says_so(memory: Memory, tmp_path: Path) -> None:
    def fact(name: str, value: str, at: int) -> str:
        return json.dumps({"kind": "fact", "text": name, "answer": value, "at": at})

    own = UserMemory(memory, "")
    header = '{"llama_run_memory": 1}'
    import_lines(own, [header, fact("colour", "red", 50), fact("pet", "cat", 50), fact("town", "Paris", 50)])
    lines = [fact("colour", "blue", 60), fact("pet", "dog", 40), fact("town", "Paris", 60), fact("tree", "oak", 1)]
    assert import_lines(own, [header, *lines]) == Imported(n_new=1, n_replaced=1, n_known=1, n_older=1)
    assert {f.text: f.answer for f in own.facts()} == {"colour": "blue", "pet": "cat", "town": "Paris", "tree": "oak"}
    assert own.search("red") == []
    assert found_texts(own, "blue") == ["colour"]
    assert check(memory) == []
    said = run(memory, "import", text="\n".join([header, fact("colour", "green", 70)])).stderr
    assert "0 new, 1 in place of older values, 0 known already, 0 left out" in said


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["{}"],
        ["nonsense"],
        ['{"llama_run_memory": 1}', '{"kind": "message", "text": "good"}', "broken"],
        ['{"llama_run_memory": 1}', '{"kind": "dream", "text": "x"}'],
        ['{"llama_run_memory": 1}', '{"kind": "pair", "text": 5}'],
        ['{"llama_run_memory": 1}', '{"kind": "pair", "text": "x", "at": -1}'],
        ['{"llama_run_memory": 1}', '{"kind": "pair", "text": "x", "key": "zz"}'],
        ['{"llama_run_memory": 1}', "[" * 100_000],
    ],
    ids=range(9),
)
def test_a_wrong_import_adds_nothing(lines: list[str], memory: Memory) -> None:
    own = UserMemory(memory, "")
    if lines:
        with pytest.raises(UserError):
            import_lines(own, lines)
    else:
        assert import_lines(own, lines).n_new == 0
    assert own.show() == []


def run(memory: Memory, *words: str, text: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["memory", words[0], "--memory", str(memory.folder), *words[1:]], input=text)


def test_nothing_is_forgotten_while_a_repair_keeps_messages_in_the_spool(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the repair ends a moment later: what it kept in the spool would come back."""
    write_spool(memory.spool, key_of_user(""), TALK, [Record(1, {"role": "user", "content": "Rosinante"})])
    unread = memory.folder / "memory.db.damaged-1.unread"
    unread.touch()

    def as_the_repair_ends(memory: Memory) -> Taken:
        taken = take_in(memory)
        unread.unlink()
        return taken

    with monkeypatch.context() as patched:
        patched.setattr(cli_memory, "take_in", as_the_repair_ends)
        refused = run(memory, "forget", "--all", "--yes").exception
    assert isinstance(refused, UserError) and "--repair" in (refused.hint or "")
    unread.unlink()
    assert run(memory, "forget", "--all", "--yes").exit_code == 0
    assert run(memory, "search", "Rosinante").stdout == ""


def test_the_commands_show_what_is_remembered(memory: Memory, tmp_path: Path) -> None:
    archive(memory, ["My bicycle is called Rosinante."])
    assert run(memory, "set", "colour", "red").exit_code == 0
    assert "[bicycle]" in run(memory, "search", "bicycle").stdout
    assert json.loads(run(memory, "search", "--json", "bicycle").stdout)[0]["conversation"] == TALK
    assert "Rosinante" in run(memory, "show", TALK).stdout
    assert run(memory, "facts").stdout.startswith("colour: red")
    assert json.loads(run(memory, "facts", "--json").stdout)[0]["value"] == "red"
    assert json.loads(run(memory, "stats", "--json", "--verify").stdout)["messages"] == 1
    assert run(memory, "stats", "--repair").exit_code == 0
    exported = tmp_path / "export.jsonl"
    assert run(memory, "export", str(exported)).exit_code == 0
    assert exported.stat().st_mode & 0o777 == 0o600
    assert run(memory, "import", "--user", "bob", str(exported)).exit_code == 0
    assert "Rosinante" in run(memory, "search", "--user", "bob", "bicycle").stdout
    assert run(memory, "forget", "--fact", "colour").exit_code == 0
    assert isinstance(run(memory, "forget", "--fact", "colour").exception, UserError)
    assert isinstance(run(memory, "forget", "--all").exception, UserError)
    assert run(memory, "forget").exit_code == 2
    assert run(memory, "forget", "--all", "--yes").exit_code == 0
    assert run(memory, "search", "bicycle").stdout == ""
    assert "Rosinante" in run(memory, "search", "--user", "bob", "bicycle").stdout


def test_what_a_terminal_would_obey_is_not_printed(memory: Memory) -> None:
    archive(memory, ["before \x1b]0;title\x07 after"])
    for words in (("search", "before"), ("show",)):
        assert "\x1b" not in run(memory, *words).stdout
