"""The log of calls."""

from __future__ import annotations

import errno
import json
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tool_fixtures import Bench, call, refusal

from pyrun.providers.known import Provider
from pyrun.tools import audit
from pyrun.tools.audit import Audit
from pyrun.tools.setup import IncludedServer


def test_every_call_is_written_down_for_its_owner_alone_and_without_secrets(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = bench.box()
    call(box, "read_file", path="inside.txt")
    refusal(box, "read_file", path="../x")
    call(box, "write_file", path="a", content="x" * 5000)
    refusal(box, "http_get", url="http://127.0.0.1/", headers={"Authorization": "Bearer hidden", "X-Api-Key": "hidden"})
    box.refuse(box.prepare("delete_file", {"path": "a"}), "the person did not allow it")
    assert [(entry["tool"], entry["outcome"]) for entry in bench.calls()] == [
        ("read_file", "done"),
        ("read_file", "failed"),
        ("write_file", "started"),
        ("write_file", "done"),
        ("http_get", "started"),
        ("http_get", "failed"),
        ("delete_file", "refused"),
    ]
    assert "hidden" not in bench.log.read_text()
    assert len(bench.log.read_text()) < 6000
    assert bench.log.stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr(audit, "MAX_BYTES", 100)
    call(box, "read_file", path="inside.txt")
    assert not bench.log.exists()
    assert bench.log.with_name("tools.jsonl.1").stat().st_mode & 0o777 == 0o600


def test_what_sends_something_is_written_down_before_it_is_sent(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever kills the tool server meanwhile does not undo that."""
    included = {"notes": IncludedServer("true", (), {})}
    box = bench.box(providers=[Provider("big", "http://127.0.0.1:1/v1", "openai", "m")], include=included)
    calls = {
        "http_get": {"url": "http://127.0.0.1:1/?data"},
        "ask_big": {"question": "data"},
        "list_resources": {"server": "notes"},
        "read_resource": {"server": "notes", "uri": "note://data"},
    }
    for name, arguments in calls.items():

        def killed(_: object, name: str = name, arguments: object = arguments) -> str:
            last = bench.calls()[-1]
            assert (last["tool"], last["outcome"], last["arguments"]) == (name, "started", arguments)
            return "sent"

        monkeypatch.setitem(box.tools, name, replace(box.tools[name], run=killed))
        assert call(box, name, **arguments) == "sent"


def test_many_writers_share_the_log_while_it_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight threads, each with a log of its own as if it were a program."""
    writers, lines, rounds = 8, 12, 25
    failures: list[OSError] = []

    def write(folder: Path, writer: int) -> None:
        log = Audit(folder)
        for line in range(lines):
            try:
                log.write("tool", {"writer": writer, "line": line}, "done", 0)
            except OSError as error:
                failures.append(error)

    Audit(tmp_path).write("tool", {"writer": 0, "line": 0}, "done", 0)
    whole = (tmp_path / audit.FILE).stat().st_size * writers * lines
    for number in range(rounds):
        monkeypatch.setattr(audit, "MAX_BYTES", whole * 2 // 3)  # so that it is set aside just once
        folder = tmp_path / str(number)
        threads = [threading.Thread(target=write, args=(folder, writer)) for writer in range(writers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        written = "".join(path.read_text() for path in (folder / f"{audit.FILE}.1", folder / audit.FILE))
        entries = [json.loads(line)["arguments"] for line in written.splitlines()]
        assert failures == []
        assert sorted((e["writer"], e["line"]) for e in entries) == [
            (w, n) for w in range(writers) for n in range(lines)
        ]


def test_a_line_that_a_full_disk_takes_in_part_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Audit(tmp_path)
    log.write("read_file", {}, "done", 0)
    before = log.path.read_bytes()
    real = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: real(handle, data[:10]))
    with pytest.raises(OSError, match="No space left"):
        log.write("write_file", {}, "started", 0)
    assert log.path.read_bytes() == before


def test_a_call_that_cannot_be_written_down_is_not_made(bench: Bench) -> None:
    box = bench.box()
    bench.log.parent.mkdir(exist_ok=True)
    bench.log.mkdir()
    with pytest.raises(OSError, match="directory"):
        call(box, "write_file", path="a", content="x")
    assert not (bench.work / "a").exists()


@pytest.mark.parametrize(("tool", "outcome"), [("write_file", "is written"), ("read_file", "no such file")])
def test_what_was_done_is_told_also_if_its_end_cannot_be_written_down(
    tool: str, outcome: str, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk that becomes full during the call."""
    box = bench.box()
    write = box.audit.write

    def full(name: str, arguments: Any, outcome: str, seconds: float, detail: str = "") -> None:
        if outcome != "started":
            raise OSError(errno.ENOSPC, "No space left on device")
        write(name, arguments, outcome, seconds, detail)

    monkeypatch.setattr(box.audit, "write", full)
    if tool == "write_file":
        told = call(box, tool, path="a", content="x")
        assert (bench.work / "a").read_text() == "x"
    else:
        told = refusal(box, tool, path="missing")
    assert outcome in told
    assert told.endswith("does not say how it ended: No space left on device]") and "the call was made" in told


def test_an_error_that_nobody_foresaw_is_a_result_and_is_written_down(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = bench.box()

    def fail(_: object) -> str:
        raise ZeroDivisionError("oh")

    monkeypatch.setitem(box.tools, "read_file", replace(box.tools["read_file"], run=fail))
    monkeypatch.setitem(box.tools, "write_file", replace(box.tools["write_file"], settle=fail))
    assert "ZeroDivisionError" in refusal(box, "read_file", path="inside.txt")
    assert "ZeroDivisionError" in refusal(box, "write_file", path="inside.txt", content="")
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"not": deep}
    refusal(box, "json_validate", text="5", schema=deep)
    told = [(entry["tool"], entry["outcome"]) for entry in bench.calls()]
    assert told == [("read_file", "failed"), ("write_file", "refused"), ("json_validate", "failed")]
    assert "ZeroDivisionError" in bench.calls()[0]["detail"]
