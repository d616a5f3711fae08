"""`llama-run tools`."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner, Result
from helpers import ROOT
from tool_fixtures import Bench, call

from pyrun.cli.main import cli
from pyrun.errors import UserError
from pyrun.extras import explain_import
from pyrun.tools import audit
from pyrun.tools.mcp_config import tool_server


def run(bench: Bench, monkeypatch: pytest.MonkeyPatch, *words: str, flags: tuple[str, ...] = ()) -> Result:
    monkeypatch.setattr("pyrun.home.Home.logs", bench.folder / "logs")
    arguments = ["tools", "--root", str(bench.work), "--memory", str(bench.folder / "memory"), *flags, *words]
    return CliRunner().invoke(cli, arguments)


def test_tools_are_listed_and_called_from_the_command_line(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_RUN_HOME", str(ROOT))
    assert "execute_command" not in run(bench, monkeypatch, "list").stdout
    listed = json.loads(run(bench, monkeypatch, "list", "--json", flags=("--commands",)).stdout)
    assert "execute_command" in [tool["name"] for tool in listed]
    assert run(bench, monkeypatch, "call", "read_file", '{"path": "inside.txt"}').stdout == "1\tinside\n"
    write = ("call", "write_file", '{"path": "a", "content": "x"}')
    assert "--allow write_file" in str(run(bench, monkeypatch, *write).exception)
    assert not (bench.work / "a").exists()
    assert run(bench, monkeypatch, *write, flags=("--allow", "write_file")).exit_code == 0
    assert (bench.work / "a").read_text() == "x"
    for wrong in ("{", "[]", '{"path": 5}'):
        assert isinstance(run(bench, monkeypatch, "call", "read_file", wrong).exception, UserError)


def test_a_question_that_is_left_is_written_down(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_RUN_HOME", str(ROOT))
    monkeypatch.setattr("pyrun.console.is_interactive", lambda: True)
    left = run(bench, monkeypatch, "call", "write_file", '{"path": "a", "content": "x"}')  # its input has ended
    assert left.exit_code != 0 and not (bench.work / "a").exists()
    log = [json.loads(line) for line in (bench.folder / "logs" / audit.FILE).read_text().splitlines()]
    assert [entry["outcome"] for entry in log] == ["asked", "refused"]


def test_without_its_packages_it_says_how_to_install_them(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    monkeypatch.delitem(sys.modules, "pyrun.tools.toolbox")
    refused = run(bench, monkeypatch, "list").exception
    assert isinstance(refused, ImportError)
    told = explain_import(refused)
    assert told and "LLAMA_RUN_EXTRAS=tools" in (told.hint or "")


def test_modules_in_the_current_folder_are_not_run(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("jsonschema", "click", "pyrun", "json"):
        (bench.work / f"{name}.py").write_text(f"from pathlib import Path; Path({name!r}).touch()")
    monkeypatch.chdir(bench.work)
    assert call(bench.box(), "json_validate", text="5", schema={"type": "integer"}) == "valid"
    entry = tool_server(bench.work)
    home = {**os.environ, "LLAMA_RUN_HOME": str(ROOT)}
    listed = subprocess.run([entry["command"], *entry["args"], "list"], env=home, capture_output=True, text=True)
    assert (listed.returncode, "json_validate" in listed.stdout) == (0, True), listed.stderr
    assert [path.name for path in bench.work.iterdir() if not path.suffix] == []
