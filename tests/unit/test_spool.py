"""The spool, and the way from it into the archive: each message once, whatever is killed when."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import ROOT

from pyrun.memory import intake, spool
from pyrun.memory.intake import Taken, take_in
from pyrun.memory.recall import UserMemory
from pyrun.memory.spool import Record, SpoolFile, SpoolFullError, digest, files, read_spool, write_spool
from pyrun.memory.store import Entry, Memory, key_of_user
from pyrun.memory.watch import SpoolWatch

ALICE = key_of_user("alice")
TALK = "00000000000000aa"

WRITER = """
import sys
from pathlib import Path
from pyrun.memory.spool import Record, write_spool
from pyrun.memory.store import key_of_user
print("started", flush=True)
for first in range(0, 1000, 8):  # a server that was killed does not know what it left, and leaves all of it again
    records = [Record(n, {"role": "user", "content": f"message {n}"}) for n in range(first, min(first + 8, 1000))]
    write_spool(Path(sys.argv[1]) / "spool", key_of_user("alice"), "00000000000000aa", records)
"""

READER = """
import sys
import time
from pathlib import Path
from pyrun.memory.intake import take_in
from pyrun.memory.store import Memory
with Memory(Path(sys.argv[1])) as memory:
    print("started", flush=True)
    take_in(memory)
    if len(sys.argv) > 2:  # it is to be killed, however fast it was
        time.sleep(60)
"""


def said(n: int, text: str = "") -> Record:
    return Record(n, {"role": "user", "content": text or f"message {n}"})


def archived(folder: Path, user: str = "alice", conversation: str = TALK) -> list[Entry]:
    with Memory(folder) as memory:
        return UserMemory(memory, user).show(conversation, limit=10_000)


def taken_in(folder: Path) -> Taken:
    with Memory(folder) as memory:
        return take_in(memory)


def test_what_was_left_is_archived_in_order_and_its_file_goes(tmp_path: Path) -> None:
    write_spool(tmp_path / "spool", ALICE, TALK, [said(3), said(4)])
    write_spool(tmp_path / "spool", ALICE, TALK, [said(0), said(1), said(2)])
    assert taken_in(tmp_path) == Taken(n_new=5)
    assert [entry.text for entry in archived(tmp_path)] == [f"message {n}" for n in range(5)]
    assert list(files(tmp_path / "spool")) == []
    assert taken_in(tmp_path) == Taken()


def test_the_same_messages_left_again_are_known(tmp_path: Path) -> None:
    for _ in range(2):
        write_spool(tmp_path / "spool", ALICE, TALK, [said(0), said(1)])
        taken_in(tmp_path)
    write_spool(tmp_path / "spool", ALICE, TALK, [said(1, "edited"), said(2)])
    assert taken_in(tmp_path) == Taken(n_new=2)
    assert [entry.text for entry in archived(tmp_path)] == ["message 0", "message 1", "edited", "message 2"]


def test_what_was_forgotten_does_not_come_back_from_a_history(tmp_path: Path) -> None:
    write_spool(tmp_path / "spool", ALICE, TALK, [said(0), said(1)])
    taken_in(tmp_path)
    with Memory(tmp_path) as memory:
        assert UserMemory(memory, "alice").forget_conversation(TALK) == 2
    write_spool(tmp_path / "spool", ALICE, TALK, [said(0), said(1), said(2)])
    assert taken_in(tmp_path) == Taken(n_new=1, n_known=2)


def test_a_file_that_was_archived_but_not_removed_adds_nothing(tmp_path: Path) -> None:
    path = write_spool(tmp_path / "spool", ALICE, TALK, [said(0), said(1)])
    content = path.read_bytes()
    taken_in(tmp_path)
    path.write_bytes(content)  # as if the intake had died before it removed it
    assert taken_in(tmp_path) == Taken(n_known=2)
    assert len(archived(tmp_path)) == 2


def test_nothing_is_missing_or_twice_over_1000_messages_with_kills(tmp_path: Path) -> None:
    chance = random.Random(7)
    started = {"writer": 0, "reader": 0}
    killed = {"writer": 0, "reader": 0}
    for name, program, kills in (("writer", WRITER, 5), ("reader", READER, 10)):
        for attempt in range(kills + 1):
            stay = ["stay"] if attempt < kills else []
            process = subprocess.Popen(
                [sys.executable, "-c", program, str(tmp_path), *stay], stdout=subprocess.PIPE, cwd=ROOT, text=True
            )
            assert process.stdout is not None
            started[name] += process.stdout.readline() == "started\n"
            if attempt < kills:
                time.sleep(chance.uniform(0, 0.25))
                process.kill()
            code = process.wait(300)
            killed[name] += code != 0
            process.stdout.close()
            if name == "reader" and attempt == 0:
                # What is left while an intake is away lies there for the next.
                write_spool(tmp_path / "spool", ALICE, TALK, [said(n) for n in range(900, 1000)])
    assert started == {"writer": 6, "reader": 11}
    assert killed["writer"] > 0
    assert killed["reader"] > 0
    assert [(e.seq, e.text) for e in archived(tmp_path)] == [(n, f"message {n}") for n in range(1000)]
    assert list(files(tmp_path / "spool")) == []


def test_a_fact_told_before_a_kill_is_found_after_it(tmp_path: Path) -> None:
    write_spool(tmp_path / "spool", ALICE, TALK, [said(3, "My bicycle is called Rosinante."), said(4)])
    process = subprocess.Popen([sys.executable, "-c", READER, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    process.stdout.readline()
    process.kill()
    process.wait(300)
    process.stdout.close()
    with Memory(tmp_path) as memory:
        take_in(memory)
        found = UserMemory(memory, "alice").search("what is my bicycle called?")
    assert [one.entry.seq for one in found] == [3]
    assert "[bicycle]" in found[0].snippet


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    path = write_spool(tmp_path / "new" / "spool", ALICE, TALK, [said(0)])
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    with Memory(tmp_path / "new") as memory:
        take_in(memory)
        modes = {p.name: p.stat().st_mode & 0o777 for p in (tmp_path / "new").iterdir() if p.is_file()}
    assert set(modes.values()) == {0o600}
    assert "memory.db-wal" in modes


def test_the_spool_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "MAX_SPOOL_BYTES", 1000)
    write_spool(tmp_path, ALICE, TALK, [said(0, "a" * 600)])
    with pytest.raises(SpoolFullError):
        write_spool(tmp_path, ALICE, TALK, [said(1, "a" * 600)])
    assert len(list(files(tmp_path))) == 1


def raw_line(text: bytes) -> bytes:
    return f"{digest(text)} ".encode() + text + b"\n"


def line(entry: object) -> bytes:
    return raw_line(json.dumps(entry).encode())


def test_the_example_of_the_page_is_a_file(tmp_path: Path) -> None:
    """docs/formats.md, from which another writer is made."""
    page = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    example = re.search(r"```\n([0-9a-f]{32} \{\"spool\".*?)```", page, re.DOTALL)
    assert example
    path = tmp_path / "spool" / ("0" * 32) / f"{TALK}-1794814764966-0123456789abcdef.spool"
    path.parent.mkdir(parents=True)
    path.write_text(example[1], encoding="utf-8")
    assert taken_in(tmp_path) == Taken(n_new=2)
    assert [(e.seq, e.role, e.text, e.at) for e in archived(tmp_path, "")] == [
        (4, "user", "My bicycle is called Rosinante.", 1794814764966),
        (5, "assistant", "A fine name.", 1794814764966),
    ]


HEADER = {"spool": 1, "user": ALICE, "conversation": TALK, "created": 1, "n": 2}
MESSAGES = [line({"seq": n, "message": {"role": "user", "content": f"message {n}"}}) for n in range(2)]


@pytest.mark.parametrize(
    ("content", "n_sound"),
    [
        (b"", 0),
        (b"\0" * 5000, 0),
        (line(HEADER), 0),
        (line({**HEADER, "spool": 2}) + b"".join(MESSAGES), 0),
        (line({**HEADER, "user": key_of_user("bob")}) + b"".join(MESSAGES), 0),
        (line({**HEADER, "conversation": "00000000000000bb"}) + b"".join(MESSAGES), 0),
        (line(HEADER) + MESSAGES[0] + MESSAGES[1][:-1], 1),
        (line(HEADER) + MESSAGES[0].replace(b"message 0", b"massage 0") + MESSAGES[1], 1),
        (line(HEADER) + MESSAGES[0] + line({"seq": -1, "message": {}}), 1),
        (line(HEADER) + MESSAGES[0] + line({"seq": 1, "message": "text"}), 1),
        (line(HEADER) + MESSAGES[0] + line([1, 2]), 1),
        (line(HEADER) + MESSAGES[0] + raw_line(b"[" * 100_000) + MESSAGES[1], 2),
        (line(HEADER) + b"".join(MESSAGES) + MESSAGES[0][:20], 2),
    ],
)
def test_of_a_damaged_file_the_sound_messages_are_taken_and_it_is_set_aside(
    content: bytes, n_sound: int, tmp_path: Path
) -> None:
    path = write_spool(tmp_path / "spool", ALICE, TALK, [])
    path.write_bytes(content)
    assert len(read_spool(path).records) == n_sound
    assert taken_in(tmp_path) == Taken(n_new=n_sound, n_damaged=1)
    assert list(files(tmp_path / "spool")) == []
    assert len(list((tmp_path / "spool" / "damaged").iterdir())) == 1
    assert len(archived(tmp_path)) == n_sound
    assert archived(tmp_path, "bob") == []


def test_a_link_in_the_spool_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(line(HEADER) + b"".join(MESSAGES))
    path = write_spool(tmp_path / "spool", ALICE, TALK, [])
    path.unlink()
    path.symlink_to(secret)
    assert taken_in(tmp_path) == Taken(n_damaged=1)
    assert secret.exists()


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOMEM, errno.EIO, errno.EACCES])
def test_a_file_that_cannot_be_read_now_stays_for_the_next_intake_and_holds_up_no_other(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = write_spool(tmp_path / "spool", ALICE, TALK, [said(0)])
    write_spool(tmp_path / "spool", ALICE, "00000000000000bb", [said(0)])

    def read(path: Path) -> SpoolFile:
        if path == refused:
            raise OSError(code, os.strerror(code))
        return read_spool(path)

    complaints: list[str] = []
    watch = SpoolWatch(tmp_path, 10**9, complaints.append)
    with monkeypatch.context() as patched:
        patched.setattr(intake, "read_spool", read)
        assert taken_in(tmp_path) == Taken(n_new=1, trouble=f"{refused}: {os.strerror(code)}")
        watch._look()
        watch._look()
    assert [os.strerror(code) in complaint for complaint in complaints] == [True]
    assert list(files(tmp_path / "spool")) == [refused]
    assert taken_in(tmp_path) == Taken(n_new=1)


def test_a_folder_that_cannot_be_read_now_holds_up_no_other_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = write_spool(tmp_path / "spool", ALICE, TALK, [said(0)]).parent
    write_spool(tmp_path / "spool", "ff" * (len(ALICE) // 2), TALK, [said(0)])
    iterdir = Path.iterdir

    def refused(folder: Path) -> Iterator[Path]:
        if folder == alice:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return iterdir(folder)

    complaints: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(Path, "iterdir", refused)
        SpoolWatch(tmp_path, 10**9, complaints.append)._look()
    assert [str(alice) in complaint for complaint in complaints] == [True]
    assert [path.parent for path in files(tmp_path / "spool")] == [alice]
    assert taken_in(tmp_path) == Taken(n_new=1)


def test_what_is_no_plain_file_is_set_aside(tmp_path: Path) -> None:
    path = write_spool(tmp_path / "spool", ALICE, TALK, [said(0)])
    path.unlink()
    path.mkdir()
    assert taken_in(tmp_path) == Taken(n_damaged=1)
    assert list(files(tmp_path / "spool")) == []


def test_unfinished_files_of_dead_writers_go(tmp_path: Path) -> None:
    folder = write_spool(tmp_path / "spool", ALICE, TALK, [said(0)]).parent
    old, young = folder / "tmp-0000000000000001", folder / "tmp-0000000000000002"
    old.touch()
    young.touch()
    os.utime(old, (1, 1))
    taken_in(tmp_path)
    assert [path.exists() for path in (old, young)] == [False, True]


def test_every_shape_of_a_message_becomes_text(tmp_path: Path) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "look", "arguments": '{"a":1}'}}]},
        {"role": "assistant", "reasoning_content": "hm", "content": "yes"},
        {"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {}}]},
        {"role": "tool", "content": 7, "tool_calls": "?"},
        {"content": [None, "bare", 3]},
    ]
    write_spool(tmp_path / "spool", ALICE, TALK, [Record(n, message) for n, message in enumerate(messages)])
    taken_in(tmp_path)
    assert [entry.text for entry in archived(tmp_path)] == ['look({"a":1})', "hm\nyes", "see\n[image_url]", "", "bare"]
