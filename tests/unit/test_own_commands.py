"""Commands that run llama-run again: what lies in the current folder is not taken for a part of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT

from pyrun.launch import llama_run_command, module_command

SHOW = "import json; from pyrun.launch import module_command; print(json.dumps(module_command('pyrun')))"


@pytest.fixture
def strange(tmp_path: Path) -> Path:
    """A folder with modules that are named as ours, and as those that we load."""
    for name in ("click.py", "json.py", "runpy.py", "requests.py", "pyrun/__init__.py", "pyrun/__main__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("raise SystemExit('a stranger was run')\n")
    return tmp_path


def test_nothing_of_the_current_folder_is_run(strange: Path) -> None:
    ran = subprocess.run([*llama_run_command(), "--version"], cwd=strange, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "") and ran.stdout.startswith("llama-run, version ")
    plain = subprocess.run([sys.executable, "-m", "pyrun", "--version"], cwd=strange, capture_output=True, text=True)
    assert "a stranger was run" in plain.stderr, "else the folder proves nothing"


def test_words_reach_the_command_as_they_are(strange: Path) -> None:
    ran = subprocess.run([*llama_run_command(), "--no-such"], cwd=strange, capture_output=True, text=True)
    assert ran.returncode == 2 and "--no-such" in ran.stderr


def test_any_module_of_ours_can_be_run(strange: Path) -> None:
    command = module_command("pyrun.tools.json_check")
    ran = subprocess.run(command, cwd=strange, input="", capture_output=True, text=True)
    assert "a stranger was run" not in ran.stderr and "No module named" not in ran.stderr


@pytest.mark.parametrize("flags", [[], ["-I"], ["-I", "-S"], ["-E", "-s"]])
def test_what_python_was_started_with_is_passed_on(flags: list[str]) -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {SHOW}"
    shown = subprocess.run([sys.executable, *flags, "-c", code], capture_output=True, text=True, check=True).stdout
    _, *passed, _, _ = json.loads(shown)
    assert set(flags) <= set(passed) and ("-S" in passed) == ("-S" in flags)
