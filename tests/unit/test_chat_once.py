"""`llama-run chat --once` in a pipe, as a process: only the answer on stdout, exit codes, and no key anywhere."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from chat_fixtures import KEY, environment
from fakes.dialects import Reply
from fakes.model_server import ModelServer, model_server
from helpers import ROOT

from pyrun.cli.main import main


@dataclass(frozen=True)
class Ended:
    stdout: str
    stderr: str
    code: int


Chat = Callable[..., Ended]


@pytest.fixture
def chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Chat]:
    """Runs the program to its end in this process, which has loaded all it needs: a new one takes seconds for that."""
    monkeypatch.chdir(tmp_path)
    on_sigterm = signal.getsignal(signal.SIGTERM)  # the program changes it

    def run(server: ModelServer, *words: str, text: str = "") -> Ended:
        for name, value in environment(tmp_path, server).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        capfd.readouterr()
        try:
            main(["chat", *words])
            code: object = 0
        except SystemExit as end:
            code = end.code
        said = capfd.readouterr()
        assert isinstance(code, int)
        return Ended(said.out, said.err, code)

    yield run
    signal.signal(signal.SIGTERM, on_sigterm)


def test_only_the_answer_is_on_stdout_and_sessions_are_continued(tmp_path: Path, chat: Chat) -> None:
    with model_server(lambda body: Reply(["Blue", " light."], ["Let me think."])) as server:
        first = subprocess.run(
            [sys.executable, "-m", "pyrun", "chat", "--once", "-"],
            input="Why is the sky blue?\n",
            capture_output=True,
            text=True,
            env=environment(tmp_path, server),
            cwd=tmp_path,
            timeout=120,
        )
        assert (first.stdout, first.stderr, first.returncode) == ("Blue light.\n", "", 0)
        second = chat(server, "--continue", "--once", "And this?", "-", text="a sunset")
        assert (second.stdout, second.stderr, second.code) == ("Blue light.\n", "", 0)
    contents = [message["content"] for message in server.requests[-1]["messages"][1:]]
    assert contents == ["Why is the sky blue?", "Blue light.", "And this?\n\na sunset"]


def test_a_resource_is_attached_where_the_person_names_it_and_not_where_stdin_does(tmp_path: Path, chat: Chat) -> None:
    notes = {"command": sys.executable, "args": [str(ROOT / "tests/fakes/resource_server.py")]}
    (tmp_path / "notes.json").write_text(json.dumps({"mcpServers": {"notes": notes}}))
    words = ("--mcp", "notes.json", "--once")
    with model_server(lambda body: Reply(["Fine."])) as server:
        assert chat(server, *words, "Review:", "-", text="see @notes:note://one").code == 0
        assert chat(server, *words, "-", text="see @notes:note://one").code == 0
        assert chat(server, *words, "See @notes:note://one", "-", text="Well?").code == 0
        assert [body["messages"][-1]["content"] for body in server.requests] == [
            "Review:\n\nsee @notes:note://one",
            "see @notes:note://one",
            "Resource note://one of notes:\n\nthe note\n\nSee @notes:note://one\n\nWell?",
        ]
        missing = chat(server, *words, "See @notes:note://none")
    assert (missing.stdout, missing.code) == ("", 1)
    assert "error: notes: there is no such thing" in missing.stderr


def test_what_fails_has_an_exit_code_and_no_key_in_its_words(tmp_path: Path, chat: Chat) -> None:
    with model_server(lambda body: Reply(status=401, error=f"bad key {KEY}")) as server:
        refused = chat(server, "--provider", "cloud", "--once", "Why?")
        assert (refused.stdout, refused.code) == ("", 1)
        assert "401" in refused.stderr
        server.script = lambda body: Reply(["half ", "an ", "answer"], cut=True)
        cut = chat(server, "--provider", "cloud", "--once", "Why?")
        assert cut.code == 1
        unreachable = chat(server, "--provider", "gone", "--once", "Why?")
        assert unreachable.code == 1
        assert "no connection" in unreachable.stderr
        unknown = chat(server, "--provider", "nobody", "--once", "Why?")
        assert "providers add nobody" in unknown.stderr
        empty = chat(server, "--once", "-", text=" ")
        assert (empty.stdout, empty.code) == ("", 1)
        assert chat(server, "one", "two", "--once", "Why?").code == 2
        server.script = lambda body: Reply(["Fine."])
        other = chat(server, "--provider", "gone,cloud", "--once", "Why?")
        assert (other.stdout, other.code) == ("Fine.\n", 0)
        assert "asking cloud instead" in other.stderr
    for run in (refused, cut, unreachable, other):
        assert KEY not in run.stdout + run.stderr
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and not path.is_symlink()]
    assert {"llama-run.toml", "memory.db"} <= {path.name for path in kept}
    assert not [path for path in kept if KEY.encode() in path.read_bytes()]


def test_nobody_can_be_asked_so_what_changes_something_is_refused_unless_a_rule_allows_it(
    tmp_path: Path, chat: Chat
) -> None:
    def script(body: dict[str, object]) -> Reply:
        messages: list[dict[str, str]] = body["messages"]  # type: ignore[assignment]
        done = messages[-1]["role"] == "tool"
        return Reply(["Done."]) if done else Reply(calls=[("c", "write_file", {"path": "a.txt", "content": "x"})])

    with model_server(script) as server:
        refused = chat(server, "--tools", "files", "--once", "Write.")
        assert (refused.stdout, refused.code) == ("Done.\n", 0)
        assert "--allow write_file" in refused.stderr
        assert not (tmp_path / "a.txt").exists()
        assert chat(server, "--tools", "files", "--allow", "write_file:a*", "--once", "Write.").code == 0
        assert (tmp_path / "a.txt").read_text() == "x"


def test_the_file_that_names_mcp_servers_is_out_of_reach_of_the_tools(tmp_path: Path, chat: Chat) -> None:
    def script(body: dict[str, object]) -> Reply:
        messages: list[dict[str, str]] = body["messages"]  # type: ignore[assignment]
        last = messages[-1]
        return Reply([last["content"]]) if last["role"] == "tool" else Reply(calls=[("c", "read_file", {"path": "a"})])

    (tmp_path / "a").write_text('{"mcpServers": {}}')
    with model_server(script) as server:
        words = ("--tools", "files", "--once", "Read.")
        assert "mcpServers" in chat(server, *words).stdout
        assert "llama-run's own" in chat(server, "--mcp", "a", *words).stdout


def test_the_first_words_come_with_the_first_token_ctrl_c_ends_it_and_ps_shows_no_key(tmp_path: Path) -> None:
    with model_server(lambda body: Reply(["word "] * 10_000, pause=0.05)) as server:
        command = [sys.executable, "-m", "pyrun", "chat", "--provider", "cloud", "--once", "Talk."]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(tmp_path, server), cwd=tmp_path
        )
        stop = threading.Timer(100, process.kill)
        stop.start()
        assert process.stdout is not None
        assert process.stdout.read(5) == b"word "
        pieces_sent = len(server.text_sent)
        shown = [" ".join(psutil.Process(process.pid).cmdline())]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        stop.cancel()
    assert pieces_sent < 200, "it is held back: a buffer of 4 kB would take 800 pieces"
    assert process.returncode == 130
    assert KEY not in shown[0] + errors.decode()


def test_without_a_terminal_and_a_question_it_says_what_to_do(chat: Chat) -> None:
    with model_server(lambda body: Reply()) as server:
        refused = chat(server, text="")
    assert refused.code == 1
    assert "--once -" in refused.stderr


@pytest.mark.parametrize("word", ["nothing", "execute_command"])
def test_a_tool_that_is_not_there_is_named(word: str, chat: Chat) -> None:
    with model_server(lambda body: Reply()) as server:
        refused = chat(server, "--tools", word, "--once", "Why?")
    assert refused.code == 1
    assert word in refused.stderr
