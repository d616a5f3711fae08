"""Records the session of docs/chat.md: the real chat with the built-in model, in a terminal of its own.

    python scripts/record_chat.py

The server has to be built.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from chat_fixtures import home_in  # noqa: E402
from helpers import free_port  # noqa: E402
from terminal import Terminal  # noqa: E402

PAGE = ROOT / "docs" / "chat.md"
BEGIN, END = "<!-- recorded by scripts/record_chat.py -->\n```text\n", "```\n<!-- end of the recording -->"
LINES = ("What is the capital of France?", "And of Italy?")


def record() -> str:
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, **home_in(Path(folder), ROOT), "PYTHONPATH": str(ROOT)}
        environment["LLAMA_ARG_PORT"] = str(free_port())
        shown = "$ llama-run chat\n" + _talk(folder, environment, LINES)
        # A new server, a new chat: what was said is read from the disk.
        return shown + "$ llama-run chat --continue\n" + _talk(folder, environment, ("Thank you!",), "--continue")


def _talk(folder: str, environment: dict[str, str], lines: tuple[str, ...], *flags: str) -> str:
    command = [sys.executable, "-m", "pyrun", "chat", "--no-build", "--backend", "cpu", *flags, "--", "--temp", "0"]
    with Terminal(command, environment, Path(folder), 110, 40) as terminal:
        terminal.wait("\n>\n")
        for number, line in enumerate(lines, 1):
            terminal.enter(line)
            terminal.wait("first token after", number)
            terminal.wait("\n>\n")
        terminal.enter("/stats")
        terminal.wait("of evaluating")
        terminal.enter("/quit")
        terminal.wait_for_end()
        return _tidy(terminal.lines)


def _tidy(lines: list[str]) -> str:
    """Without the status line below the input, and without runs of empty lines."""
    passing = re.compile(r" local · .* tokens|. st(art|opp)ing the server")
    kept = [line for line in lines if not passing.match(line)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip() + "\n"


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    PAGE.write_text(before + BEGIN + record() + END + rest.split(END)[1], encoding="utf-8")
