"""The chat behind a real pseudo-terminal, with a scripted model: what a person types, and the screen they see."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_fixtures import environment
from fakes.dialects import Reply
from fakes.model_server import ModelServer, model_server
from helpers import wait_until
from terminal import Terminal

MARKDOWN = """# Title

Some *words* and `code`, 日本語 and Ελληνικά.

- one
- two

```python
def double(x):
    return 2 * x
```

The end of it."""


def script(body: dict[str, Any]) -> Reply:
    last = body["messages"][-1]
    said = last["content"]
    if last["role"] == "tool":
        return Reply([f"The tool says: {said}"])
    if "write" in said:
        call = ("c", "write_file", {"path": f"{said.split()[-1]}", "content": "x"})
        return Reply(["I will."], calls=[call], delay=4.0 if "slow" in said else 0.0)
    if "long" in said:
        return Reply([f"word{n} " for n in range(5_000)], pause=0.02)
    if "slow" in said:
        return Reply(["Here it is."], delay=4.0)
    if "markdown" in said:
        return Reply([MARKDOWN[i : i + 3] for i in range(0, len(MARKDOWN), 3)], ["Let me ", "think about it."])
    if "evil" in said:
        return Reply(["before\x1b[2J\x1b]0;title\x07after"])
    return Reply([f"You said {len(said.splitlines())} lines."])


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with model_server(script) as made:
        yield made


def chat(folder: Path, server: ModelServer, *words: str, columns: int = 80) -> Terminal:
    command = [sys.executable, "-m", "pyrun", "chat", *words]
    return Terminal(command, environment(folder, server), folder, columns)


def test_a_person_talks_resizes_pastes_and_leaves(tmp_path: Path, server: ModelServer) -> None:
    with chat(tmp_path, server) as terminal:
        terminal.wait("/help lists the rest")
        terminal.wait("\n>")
        terminal.enter("Show me markdown")
        terminal.wait("The end of it.")
        terminal.wait("first token after")
        for shown in ("Title", "日本語", "Ελληνικά", " • one", "return 2 * x", "▸ thought for"):
            assert terminal.text.count(shown) == 1, f"{shown}:\n{terminal.text}"
        assert "think about it" not in terminal.text, "reasoning is folded"
        assert "```" not in terminal.text
        terminal.enter("/thoughts")
        terminal.wait("think about it.")

        terminal.resize(40, 24)
        terminal.enter("markdown again")
        terminal.wait("The end of it.", 2)
        terminal.wait("first token after", 2)
        assert all(len(line) <= 40 for line in terminal.screen.display)

        terminal.paste("\n".join(f"line {n}" for n in range(2_000)))
        terminal.wait("[paste 1: 2,000 lines]")
        terminal.send("\r")
        terminal.wait("You said 2000 lines.")
        terminal.wait("first token after", 3)
        assert server.requests[-1]["messages"][-1]["content"].endswith("line 1998\nline 1999")

        terminal.wait("\n>\n")
        terminal.send("\x1b[A")
        terminal.wait("[paste 1: 2,000 lines]", 2)
        terminal.send("\r")
        terminal.wait("first token after", 4)
        assert len(server.bodies) == 4
        assert server.requests[-1]["messages"][-1]["content"].endswith("line 1999"), "Up brings back more than its name"

        terminal.enter("evil")
        terminal.wait("before")
        terminal.wait("first token after", 5)
        assert "\x1b]0;title" not in terminal.raw

        terminal.enter("/stats")
        terminal.wait("5 answers")
        terminal.enter("/nothing")
        terminal.wait("there is no command")
        terminal.enter("/quit")
        assert terminal.wait_for_end() == 0


def test_tools_ask_ctrl_c_stops_the_answer_and_kill_9_costs_nothing_whole(tmp_path: Path, server: ModelServer) -> None:
    with chat(tmp_path, server, "--tools", "files") as terminal:
        terminal.wait("\n>")
        terminal.enter("write a.txt")
        terminal.wait("Allow write_file?")
        terminal.wait("allow? ")
        terminal.send("y\r")
        terminal.wait("The tool says")
        terminal.wait("first token after", 2)
        assert (tmp_path / "a.txt").read_text() == "x"
        terminal.enter("write b.txt")
        terminal.wait("allow? ", 2)
        terminal.send("n\r")
        terminal.wait("did not allow it")
        terminal.wait("first token after", 4)
        assert not (tmp_path / "b.txt").exists()

        terminal.enter("a long one")
        terminal.wait("word20 ")
        terminal.send("\x03")
        terminal.wait("stopped")
        assert server.gone.wait(60)
        terminal.enter("still there?")
        terminal.wait("first token after", 5)
        terminal.wait("\n>\n")
        terminal.send("half a line\x03\x03")
        terminal.wait("Ctrl-D or /quit leaves")

        server.gone.clear()
        asked = len(server.bodies)
        terminal.enter("another long one")
        terminal.wait("word10 ", terminal.text.count("word10 ") + 1)
        assert len(server.bodies) == asked + 1
        terminal.process.kill(signal.SIGKILL)
        assert terminal.wait_for_end() == -signal.SIGKILL

    with chat(tmp_path, server, "--continue") as terminal:
        terminal.wait("> another long one")
        terminal.wait("/retry asks for it")
        assert "You said 1 lines." in terminal.text
        terminal.enter("/edit")
        terminal.wait("> another long one", 2)
        terminal.send("\x15short\r")
        terminal.wait("You said 1 lines.", 2)
        terminal.wait("first token after")
        terminal.wait("\n>\n")
        terminal.send("\x04")
        assert terminal.wait_for_end() == 0
    contents = [message["content"] for message in server.requests[-1]["messages"] if message["role"] == "user"]
    assert contents == ["write a.txt", "write b.txt", "a long one", "still there?", "short"]


def test_waiting_is_told_and_what_is_typed_meanwhile_is_the_next_line(tmp_path: Path, server: ModelServer) -> None:
    with chat(tmp_path, server, "--tools", "files") as terminal:
        terminal.wait("\n>")
        terminal.enter("a slow one")
        terminal.wait("local …")
        terminal.send("typed ahead")
        terminal.wait("first token after")
        assert "local …" not in terminal.text, "it is gone when the answer begins"
        terminal.wait("> typed ahead")

        terminal.send("\x03")
        terminal.wait("\n>\n")
        terminal.send("\x1b[A")
        terminal.wait("> typed ahead")
        terminal.send("\x15")
        terminal.wait("\n>\n")

        terminal.enter("a long one")
        terminal.wait("word20 ")
        terminal.send("kept over Ctrl-C\x03")
        terminal.wait("stopped")
        terminal.wait("> kept over Ctrl-C")
        assert len(server.bodies) == 2, "nothing was sent that nobody sent"
        terminal.send("\x15")
        terminal.wait("\n>\n")

        terminal.enter("slow write c.txt")
        terminal.wait("local …")
        terminal.send("yes")
        terminal.wait("allow? ")
        assert not (tmp_path / "c.txt").exists(), "it is no answer to what was not asked yet"
        terminal.send("so be it\r")
        terminal.wait("allow? ", 2)
        assert not (tmp_path / "c.txt").exists(), "a sentence that was under way is no answer"
        terminal.send("n\r")
        terminal.wait("did not allow it")
        terminal.wait("> yes")


def test_ctrl_c_is_heard_behind_much_typing_and_brings_the_question_back(tmp_path: Path, server: ModelServer) -> None:
    with chat(tmp_path, server, "--tools", "files") as terminal:
        terminal.wait("\n>")
        terminal.enter("a long one")
        terminal.wait("word20 ")
        terminal.send("x" * 6000)
        terminal.send("\x03")
        terminal.wait("stopped")
        terminal.wait("xxxx")
        terminal.send("\x15")
        terminal.wait("\n>\n")

        terminal.enter("a slow one")
        terminal.wait("local …")
        wait_until(lambda: "a slow one" in str(server.requests[-1]["messages"][-1]), 120, "it has arrived")
        n_asked = len(server.bodies)
        terminal.send("more\r")
        terminal.send("\x03")
        terminal.wait("> a slow one\n  more")
        assert len(server.bodies) == n_asked, "it is sent when the person says so"
