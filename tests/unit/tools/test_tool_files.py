"""Files are written, read, edited, found and deleted."""

from __future__ import annotations

import contextlib
import threading

import pytest
from tool_fixtures import Bench, call, refusal

from pyrun.tools.files import FileTools


def test_files_are_written_read_edited_found_and_deleted(bench: Bench) -> None:
    box = bench.box()
    call(box, "write_file", path="src/deep/new.py", content="one = 1\ntwo = 2\nthree = 3\n")
    assert (
        call(box, "read_file", path="src/deep/new.py", first_line=2, max_lines=1) == "2\ttwo = 2\n[lines 2 to 2 of 3]"
    )
    assert "3 times" in refusal(box, "edit_file", path="src/deep/new.py", old=" = ", new="")
    call(box, "edit_file", path="src/deep/new.py", old="two = 2", new="two = 22")
    assert (bench.work / "src/deep/new.py").read_text() == "one = 1\ntwo = 22\nthree = 3\n"
    assert call(box, "find_files", pattern="*.py") == "src/deep/new.py"
    assert call(box, "find_files", pattern="*.py", path="src/deep") == "src/deep/new.py"
    assert call(box, "search_text", text="TWO", ignore_case=True) == "src/deep/new.py:2: two = 22"
    assert call(box, "search_text", text="TWO") == "nothing was found"
    assert call(box, "list_directory", path="src") == "deep\tfolder"
    assert call(box, "list_directory") == "inside.txt\tfile, 7 bytes\nsrc\tfolder"
    assert call(box, "file_exists", path="src/deep/new.py").startswith("yes, file")
    assert call(box, "file_exists", path="src/none/new.py") == "no"
    call(box, "delete_file", path="src/deep/new.py")
    assert call(box, "file_exists", path="src/deep/new.py") == "no"
    assert "only files" in refusal(box, "delete_file", path="src")
    assert "no such file" in refusal(box, "delete_file", path="src/none").lower()


def test_edits_of_one_file_at_the_same_time_are_all_in_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    (bench.work / "both.txt").write_text("one two")
    have_read = threading.Barrier(2)
    read = FileTools._read

    def slowly(tools: FileTools, path: str) -> str:
        content = read(tools, path)
        with contextlib.suppress(threading.BrokenBarrierError):
            have_read.wait(1)  # until the other one has read as well, if it can
        return content

    monkeypatch.setattr(FileTools, "_read", slowly)
    boxes = bench.box(), bench.box()  # a program may have several
    words = zip(boxes, ("one", "two"), strict=True)
    threads = [
        threading.Thread(target=call, args=(box, "edit_file"), kwargs={"path": "both.txt", "old": old, "new": old * 2})
        for box, old in words
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (bench.work / "both.txt").read_text() == "oneone twotwo"


def test_a_written_file_keeps_its_mode(bench: Bench) -> None:
    script = bench.work / "script.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o750)
    call(bench.box(), "edit_file", path="script.sh", old="sh\n", new="sh -e\n")
    assert script.stat().st_mode & 0o777 == 0o750
    assert [path.name for path in bench.work.iterdir() if path.name.endswith(".tmp")] == []
