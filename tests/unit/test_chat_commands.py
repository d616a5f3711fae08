"""What begins with a slash, and how a stream of markdown is cut into blocks."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from itertools import pairwise

import pytest
from chat_fixtures import Desk, link
from fakes.dialects import Reply
from fakes.model_server import model_server
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from tool_fixtures import Bench

from pyrun.chat import commands
from pyrun.chat.blocks import Block, Blocks
from pyrun.chat.conversation import Chat
from pyrun.chat.drawing import draw
from pyrun.chat.plain import safe
from pyrun.chat.sessions import Row
from pyrun.errors import UserError
from pyrun.memory.recall import UserMemory
from pyrun.providers.events import ProviderError
from pyrun.providers.known import Provider


class Talk:
    """A chat whose screen is a text."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.out = io.StringIO()
        other = Provider("other", "http://127.0.0.1:1/v1", "openai", "m")
        self.chat = Chat(desk.agent, desk.servers, [other], "", Console(file=self.out, width=200))

    def run(self, line: str) -> str:
        """What it shows; and if a turn follows, it is made."""
        self.out.truncate(0)
        self.out.seek(0)
        if commands.run(self.chat, line):
            self.chat.agent.answer(self.desk.view)
        return self.out.getvalue()

    @property
    def spoken(self) -> list[str]:
        return [str(row.message["content"]) for row in self.chat.agent.session.rows if row.role != "system"]


@pytest.fixture
def talk(bench: Bench) -> Iterator[Talk]:
    numbers = iter(range(1000))
    with model_server(lambda body: Reply([f"Answer {next(numbers)}."])) as server, Desk(bench, [link(server)]) as desk:
        made = Talk(desk)
        desk.ask("One?")
        desk.ask("Two?")
        yield made


def test_the_last_exchange_is_asked_again_changed_or_taken_back(talk: Talk) -> None:
    talk.run("/retry")
    assert talk.spoken == ["One?", "Answer 0.", "Two?", "Answer 2."]
    talk.run("/edit")
    assert (talk.spoken, talk.chat.input) == (["One?", "Answer 0."], "Two?")
    assert "2 messages" in talk.run("/undo")
    assert talk.spoken == []
    with pytest.raises(UserError):
        talk.run("/undo")
    with pytest.raises(UserError, match="/system, /sessions, /save, /stats"):
        talk.run("/s")


def test_sessions_branch_get_titles_are_found_and_continued(talk: Talk) -> None:
    first = talk.chat.agent.session.name
    talk.run("/branch")
    talk.desk.ask("Three?")
    talk.run("/save A title of mine")
    shown = talk.run("/sessions three mine")
    assert talk.chat.agent.session.name[:8] in shown
    assert first[:8] not in shown
    talk.run(f"/sessions {first[:8]}")
    assert talk.spoken[-1] == "Answer 1."
    talk.run("/system Be a pirate.")
    assert talk.chat.agent.session.rows[0].message["content"] == "Be a pirate."
    assert talk.spoken[-1] == "Answer 1."
    assert "pirate" in talk.run("/system")


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_session_that_is_forgotten_during_an_answer_is_not_said_to_be_kept(talk: Talk, is_stopped: bool) -> None:
    agent = talk.chat.agent

    def forget() -> None:
        UserMemory(agent.sessions.memory, "").forget_conversation(agent.session.name)
        if is_stopped:
            raise KeyboardInterrupt

    agent.say("Three?")
    talk.desk.view.on_text = forget
    talk.chat.turn(talk.desk.view)
    assert "forgotten or removed" in talk.out.getvalue()
    assert "is kept" not in talk.out.getvalue()
    assert agent.sessions.find() == []


def test_a_message_without_an_answer_is_said_to_be_kept(talk: Talk) -> None:
    def fail() -> None:
        raise ProviderError("broken", "it went away")

    talk.chat.agent.say("Three?")
    talk.desk.view.on_text = fail
    talk.chat.turn(talk.desk.view)
    assert "it went away" in talk.out.getvalue()
    assert "is kept" in talk.out.getvalue()
    assert talk.spoken[-1] == "Three?"


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_message_that_another_chat_took_back_is_not_said_to_be_kept(talk: Talk, is_stopped: bool) -> None:
    agent = talk.chat.agent

    def take_back() -> None:
        agent.sessions.truncate(agent.sessions.load(agent.session.name), 1)
        if is_stopped:
            raise KeyboardInterrupt
        raise ProviderError("broken", "it went away")

    agent.say("Three?")
    talk.desk.view.on_text = take_back
    talk.chat.turn(talk.desk.view)
    assert "is kept" not in talk.out.getvalue()
    talk.desk.view.on_text = lambda: None
    with pytest.raises(UserError, match="went on in another program"):
        talk.run("/retry")
    talk.run("/branch")
    talk.run("/retry")
    assert "Two?" in talk.spoken


def test_an_answer_during_which_another_chat_went_on_is_kept_by_a_branch(talk: Talk) -> None:
    agent = talk.chat.agent

    def go_on() -> None:
        elsewhere = agent.sessions.load(agent.session.name)
        agent.sessions.append(elsewhere, [Row({"role": "assistant", "content": "Elsewhere."}, 3)])
        talk.desk.view.on_text = lambda: None

    agent.say("Three?")
    talk.desk.view.on_text = go_on
    talk.chat.turn(talk.desk.view)
    assert "went on in another program" in talk.out.getvalue()
    with pytest.raises(UserError, match="went on in another program"):
        agent.say("Four?")
    first = agent.session.name
    talk.run("/branch")
    assert talk.spoken[-3:] == ["Three?", "Answer 2.", "Four?"]
    talk.run(f"/sessions {first[:8]}")
    assert talk.spoken[-2:] == ["Three?", "Elsewhere."]


def test_files_are_attached_and_sessions_exported(talk: Talk, bench: Bench) -> None:
    (bench.work / "code.md").write_text("```\nx\n```")
    talk.run(f"/attach {bench.work / 'code.md'}")
    assert talk.chat.with_attachments("See?").endswith("````\n```\nx\n```\n````\n\nSee?")
    assert talk.chat.with_attachments("See?") == "See?"
    for name in ("talk.md", "talk.json"):
        talk.run(f"/export {bench.work / name}")
        assert "Answer 1." in (bench.work / name).read_text()
    assert json.loads((bench.work / "talk.json").read_text())["messages"][1]["content"] == "One?"
    (bench.work / "binary").write_bytes(b"\0")
    with pytest.raises(ValueError, match="no text"):
        talk.run(f"/attach {bench.work / 'binary'}")
    (bench.work / "picture").write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(UserError, match="is a picture, and the chat sends text only"):
        talk.run(f"/attach {bench.work / 'picture'}")
    assert talk.chat.attachments == []


def test_memory_facts_and_numbers_are_shown(talk: Talk) -> None:
    assert "home town: Rome" in talk.run("/facts home town = Rome")
    assert "Rome" in talk.run("/memory rome")
    assert "2 answers" in talk.run("/stats")
    assert "not known" in talk.run("/cost")
    shown = talk.run("/he")
    assert all(name in shown for name in commands.COMMANDS)


def test_tools_rules_models_and_providers_are_changed(talk: Talk) -> None:
    assert "write_file" in talk.run("/tools")
    assert "write_file" not in talk.run("/tools read_file")
    assert [tool.name for tool in talk.chat.agent.session.tools] == ["read_file"]
    assert "write_file:notes/*" in talk.run("/allow write_file:notes/*")
    with pytest.raises(UserError):
        talk.run("/allow not a rule")
    talk.run("/model larger")
    assert talk.chat.link.provider.model == "larger"
    assert "other" in talk.run("/provider")
    talk.run("/provider other")
    assert talk.chat.link.name == "other"
    with pytest.raises(UserError, match="no provider"):
        talk.run("/provider nobody")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("/help", True),
        ("/Help", True),
        ("/things:greet name=Ann", True),
        ("/etc/hosts is empty", False),
        ("/* a comment */", False),
        ("// another one", False),
        ("/", False),
    ],
)
def test_what_merely_begins_with_a_slash_is_no_command(line: str, expected: bool) -> None:
    assert commands.is_command(line) == expected


TABLE = "| a | b |\n|---|---|\n| 1 | 2 |\n"
TEXT = "# A\n\nwords\nmore\n\n```py\nx = 1\n\ny = 2\n```\nend\n"
BLOCKS = [Block("# A"), Block("words\nmore"), Block("x = 1\n\ny = 2", "py"), Block("end")]


@given(st.lists(st.integers(0, len(TEXT)), max_size=10))
def test_blocks_are_the_same_however_the_text_comes_in(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(TEXT)]
    blocks = Blocks()
    found = [block for a, b in pairwise(places) for block in blocks.feed(TEXT[a:b])]
    assert found + blocks.end() == BLOCKS


def test_long_code_is_shown_in_parts_and_what_is_open_at_the_end_is_shown() -> None:
    blocks = Blocks()
    shown = blocks.feed("~~~\n" + "line\n" * 45)
    assert [len(block.text.splitlines()) for block in shown] == [20, 20]
    assert [block.goes_on for block in shown] == [False, True]
    assert blocks.end() == [Block("\n".join(["line"] * 5), "", goes_on=True)]


def test_an_answer_has_one_empty_line_between_its_blocks_and_all_that_was_said() -> None:
    out = io.StringIO()
    console = Console(file=out, width=40)
    code = "```\n" + "x\n" * 19 + "\n\ny\n```\n"
    for block in draw(f"# A\nwords\n- one\n- two\n\n> said\n\n{TABLE}\n{code}A <b>tag</b>."):
        console.print(block)
    shown = [line.rstrip() for line in out.getvalue().splitlines()]
    assert shown == [
        *("A", "", "words", "", " • one", " • two", "", "▌ said", ""),
        *(" a  b", " ────", " 1  2", "", *["x"] * 19, "", "", "y", "", "A <b>tag</b>."),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("👩\u200d👧, क\u200cष", "👩\u200d👧, क\u200cष"),
        ("10\u00a0km,\u3000全角", "10\u00a0km,\u3000全角"),
        ("\x1b[2J\x9b1m\a\u202e", "\ufffd[2J\ufffd1m\ufffd\ufffd"),
        ("a\r\n\tb", "a\n\tb"),
    ],
)
def test_a_terminal_is_given_all_writing_and_nothing_that_it_obeys(text: str, expected: str) -> None:
    assert safe(text) == expected
