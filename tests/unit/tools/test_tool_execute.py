"""Commands that a model runs: what they tell, and how they end."""

from __future__ import annotations

import os
import sys

import psutil
import pytest
from tool_fixtures import Bench, call

from pyrun.tools.tool import ToolError


def test_a_command_tells_its_code_and_output(bench: Bench) -> None:
    box = bench.box()
    assert call(box, "execute_command", command="echo out; echo err >&2; exit 3") == "[exit code 3]\nout\nerr\n"
    assert call(box, "execute_command", command="kill -9 $$") == "[exit code 137]\n"
    assert call(box, "execute_command", command="exit 200") == "[exit code 200]\n"
    assert "not found" in call(box, "execute_command", command="no-such-program")


@pytest.mark.parametrize("command", ["", " \n\t", "a\0b"])
def test_a_command_that_runs_nothing_is_refused_before_anybody_is_asked(command: str, bench: Bench) -> None:
    with pytest.raises(ToolError, match="is empty|no NUL"):
        bench.box().prepare("execute_command", {"command": command})


def test_a_character_in_the_middle_of_the_output_stays_whole(bench: Bench) -> None:
    written = "x" + "я" * 40_000
    (bench.work / "long.txt").write_text(written, encoding="utf-8")
    assert call(bench.box(), "execute_command", command="cat long.txt") == f"[exit code 0]\n{written}"


@pytest.mark.skipif(sys.platform != "linux", reason="what a killed keeper leaves behind is found in /proc")
def test_a_command_that_kills_its_keeper_ends_all_the_same(bench: Bench) -> None:
    asleep = f"sleep 300.{os.getpid()}"
    command = f"exec >/dev/null 2>&1; {asleep} & kill -9 $PPID; exec {asleep}"
    assert call(bench.box(), "execute_command", command=command, timeout=600) == "[exit code -9]\n"
    assert [one.pid for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == asleep.split()] == []
