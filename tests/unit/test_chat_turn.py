"""A turn: rounds of tools with consent and limits, a history that only grows, and what goes wrong on the way."""

from __future__ import annotations

import json
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from chat_fixtures import Desk, link
from fakes.dialects import DIALECTS, SIGNED, Reply
from fakes.model_server import messages_on_the_wire, model_server
from tool_fixtures import Bench

from pyrun.chat.chain import Chain, Link
from pyrun.chat.prompt import NOTE, choose, room
from pyrun.chat.sessions import NO_RESULT
from pyrun.chat.turn import CUT, STOPPED, Limits
from pyrun.memory.recall import UserMemory
from pyrun.providers.events import ProviderError

Body = dict[str, Any]


def write(number: int, path: str = "a.txt") -> tuple[str, str, dict[str, Any]]:
    return f"c{number}", "write_file", {"path": path, "content": "x"}


def after_tools(*calls: tuple[str, str, dict[str, Any]]) -> Callable[[Body], Reply]:
    """Calls first, then answers with what came back."""

    def script(body: Body) -> Reply:
        last = body["messages"][-1]
        return Reply([f"Done: {last['content']}"]) if last["role"] == "tool" else Reply(calls=list(calls))

    return script


def test_calls_run_with_consent_and_their_results_go_back(bench: Bench) -> None:
    script = after_tools(("c1", "read_file", {"path": "inside.txt"}), write(2))
    with model_server(script) as server, Desk(bench, [link(server)]) as desk:
        desk.ask("Read it, and write a.")
        assert len(desk.view.questions) == 1
        assert "a.txt" in desk.view.questions[0]
        assert sorted((name, failed) for name, _, failed in desk.view.results) == [
            ("read_file", False),
            ("write_file", False),
        ]
        assert [m["tool_call_id"] for m in desk.messages if m["role"] == "tool"] == ["c1", "c2"]
        assert (bench.work / "a.txt").read_text() == "x"


def test_a_no_is_told_to_the_model_and_nothing_is_done(bench: Bench) -> None:
    with model_server(after_tools(write(1))) as server, Desk(bench, [link(server)]) as desk:
        desk.view.says = "no"
        assert "did not allow" in desk.ask("Write a.")
        assert not (bench.work / "a.txt").exists()
        assert [call["outcome"] for call in bench.calls()] == ["refused"]


def test_consent_for_the_session_covers_that_file_and_no_other_and_always_is_a_rule(bench: Bench) -> None:
    with model_server(after_tools(write(1, "a[1].txt"))) as server, Desk(bench, [link(server)]) as desk:
        desk.view.says = "session"
        desk.ask("Write.")
        desk.ask("Write again.")
        assert len(desk.view.questions) == 1
        desk.view.says = "always"
        server.script = after_tools(write(2, "b.txt"))
        desk.ask("Write b.")
        assert len(desk.view.questions) == 2
        assert "write_file:b.txt" in (bench.folder / "llama-run.toml").read_text()


def test_equal_calls_are_broken_with_a_note_and_in_the_end_the_turn_ends(bench: Bench) -> None:
    script = lambda body: Reply(calls=[("c", "read_file", {"path": "inside.txt"})])  # noqa: E731
    with model_server(script) as server, Desk(bench, [link(server)]) as desk:
        assert "again and again" in desk.ask("Read.")
        assert [failed for _, _, failed in desk.view.results] == [False, False, False, True, True, True]
        assert "was not made" in desk.view.results[3][1]
        server.script = lambda body: Reply(["Fine."])
        assert desk.ask("Go on.") == "Fine."


def test_rounds_end(bench: Bench) -> None:
    numbers = iter(range(1000))
    script = lambda body: Reply(calls=[("c", "find_files", {"pattern": f"*{next(numbers)}"})])  # noqa: E731
    with model_server(script) as server, Desk(bench, [link(server)], limits=Limits(rounds=4)) as desk:
        assert "4 rounds" in desk.ask("Look.")
        assert len(server.bodies) == 4


@pytest.mark.parametrize(
    ("arguments", "told"),
    [({"path": 5}, "$.path"), ({"path": "../outside/secret.txt"}, "leads out"), ({"path": "nothing"}, "nothing")],
)
def test_failures_go_back_to_the_model(arguments: dict[str, Any], told: str, bench: Bench) -> None:
    with model_server(after_tools(("c", "read_file", arguments))) as server, Desk(bench, [link(server)]) as desk:
        assert told in desk.ask("Read it.")


def test_a_call_that_is_no_json_or_of_no_tool_goes_back_to_the_model(bench: Bench) -> None:
    with model_server(after_tools(("c", "nothing", {}))) as server, Desk(bench, [link(server)]) as desk:
        assert "there is no tool" in desk.ask("Call.")


def test_a_call_that_is_cut_at_the_limit_is_not_made_and_the_session_goes_on(bench: Bench) -> None:
    answers = after_tools(("c1", "read_file", {"path": "inside.txt"}), write(2))

    def script(body: Body) -> Reply:
        """As a llama-server, it refuses a history whose arguments it cannot read."""
        try:
            for message in body["messages"]:
                for call in message.get("tool_calls", []):
                    json.loads(call["function"]["arguments"])
        except ValueError as error:
            return Reply(status=400, error=str(error))
        return replace(answers(body), at_limit=body["messages"][-1]["content"] == "Write a.")

    with model_server(script) as server, Desk(bench, [link(server)]) as desk:
        assert desk.ask("Write a.") == f"Done: {CUT}"
        assert [(name, failed) for name, _, failed in desk.view.results] == [("write_file", True), ("read_file", False)]
        assert desk.view.notes == ["the answer reached its limit and was cut; the model is told"]
        assert not (bench.work / "a.txt").exists()
        desk.ask("Write it after all.")
        assert (bench.work / "a.txt").read_text() == "x"


@pytest.mark.parametrize(
    ("command", "seconds", "told"),
    [
        ("sleep 600", 1, "its time was over"),
        ("yes", 60, "it wrote more than"),
        ("kill -9 $$", 60, "exit code"),
    ],
)
def test_a_tool_that_hangs_floods_or_dies_costs_its_call_only(
    command: str, seconds: int, told: str, bench: Bench
) -> None:
    script = after_tools(("c", "execute_command", {"command": command, "timeout": seconds}))
    with model_server(script) as server, Desk(bench, [link(server)], "execute_command") as desk:
        answer = desk.ask("Run it.")
        assert told in answer
        assert len(answer) < 40_000
        server.script = lambda body: Reply(["Fine."])
        assert desk.ask("And now?") == "Fine."


def test_ctrl_c_ends_a_call_and_keeps_a_history_that_can_go_on(bench: Bench) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    script = after_tools(("c", "execute_command", {"command": "sleep 600"}))
    with model_server(script) as server, Desk(bench, [link(server)], "execute_command") as desk:
        desk.view.on_running = interrupt
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            desk.ask("Run it.")
        assert time.monotonic() - began < 30
        assert [m["role"] for m in desk.messages[-3:]] == ["assistant", "tool", "assistant"]
        assert desk.messages[-1]["content"] == STOPPED
        server.script = lambda body: Reply(["Fine."])
        assert desk.ask("And now?") == "Fine."


def test_a_second_ctrl_c_leaves_a_history_that_can_go_on(bench: Bench) -> None:
    def interrupted(text: str) -> int:
        raise KeyboardInterrupt  # while the result of the call that was stopped is counted

    def interrupt() -> None:
        desk.agent.count = interrupted
        raise KeyboardInterrupt

    script = after_tools(("c", "execute_command", {"command": "sleep 600"}))
    with model_server(script) as server, Desk(bench, [link(server)], "execute_command") as desk:
        count = desk.agent.count
        desk.view.on_running = interrupt
        with pytest.raises(KeyboardInterrupt):
            desk.ask("Run it.")
        desk.agent.count = count
        assert desk.messages[-1]["role"] == "assistant" and desk.messages[-1]["tool_calls"]
        server.script = lambda body: Reply(["Fine."])
        assert desk.ask("And now?") == "Fine."
        assert desk.messages[-3] == {"role": "tool", "tool_call_id": "c", "content": NO_RESULT}
        assert server.requests[-1]["messages"][-2] == desk.messages[-3]


def test_consent_for_an_empty_command_allows_no_other(bench: Bench) -> None:
    script = after_tools(("c", "execute_command", {"command": ""}))
    with model_server(script) as server, Desk(bench, [link(server)]) as desk:
        desk.view.says = "session"
        assert "the command is empty" in desk.ask("Run it.")
        assert (desk.view.questions, list(desk.agent.toolset.rules)) == ([], [])


def test_consent_for_a_command_with_shell_signs_is_asked_for_once(bench: Bench) -> None:
    script = after_tools(("c", "execute_command", {"command": "ls *.txt | wc -l"}))
    with model_server(script) as server, Desk(bench, [link(server)]) as desk:
        desk.view.says = "session"
        desk.ask("Count.")
        desk.ask("Count again.")
        assert len(desk.view.questions) == 1


def test_ctrl_c_in_an_answer_keeps_what_was_said_and_closes_the_connection(bench: Bench) -> None:
    def interrupt() -> None:
        if len(desk.view.shown) > 20:
            raise KeyboardInterrupt

    with model_server(lambda body: Reply(["word "] * 2000, pause=0.01)) as server, Desk(bench, [link(server)]) as desk:
        desk.view.on_text = interrupt
        with pytest.raises(KeyboardInterrupt):
            desk.ask("Talk.")
        assert desk.messages[-1]["content"].startswith("word word")
        assert desk.agent.session.rows[-1].about == {"stopped": True}
        assert server.gone.wait(60), "the server goes on talking to nobody"


def test_ctrl_c_while_an_answer_that_broke_off_is_waited_for_keeps_nothing_of_it(bench: Bench) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    broken = Reply(["half ", "an ", "answer"], cut=True)
    with model_server(lambda body: broken) as server, Desk(bench, [link(server)]) as desk:
        desk.agent.chain = Chain(desk.agent.chain.links, interrupt)
        with pytest.raises(KeyboardInterrupt):
            desk.ask("Why?")
        assert desk.view.shown and "trying again" in desk.view.notes[-1]
        assert desk.messages[-1] == {"role": "user", "content": "Why?"}


@pytest.mark.parametrize("when", ["counted", "stored"])
def test_ctrl_c_at_the_end_of_an_answer_does_not_cost_it(
    when: str, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with model_server(lambda body: Reply(["Blue."])) as server, Desk(bench, [link(server)]) as desk:
        count, memory = desk.agent.count, desk.sessions.memory
        write = memory.writing

        @contextmanager
        def interrupted() -> Iterator[sqlite3.Connection]:
            monkeypatch.setattr(memory, "writing", write)
            with write() as database:
                yield database
            signal.raise_signal(signal.SIGINT)

        def counted(text: str) -> int:
            desk.agent.count = count
            if when == "counted":
                signal.raise_signal(signal.SIGINT)
            monkeypatch.setattr(memory, "writing", interrupted)
            return count(text)

        desk.agent.say("Which colour?")
        desk.view.on_text = lambda: setattr(desk.agent, "count", counted)
        with pytest.raises(KeyboardInterrupt):
            desk.agent.answer(desk.view)
        desk.view.on_text = lambda: None
        assert [m["content"] for m in desk.messages[1:]] == ["Which colour?", "Blue."]
        assert desk.ask("And now?") == "Blue."


# Providers


def test_the_next_provider_answers_where_the_first_cannot_and_the_turn_is_not_lost(bench: Bench) -> None:
    broken = Reply(["half ", "an ", "answer"], cut=True)
    with (
        model_server(lambda body: Reply(["One."])) as first,
        model_server(lambda body: Reply(["Two."])) as second,
        Desk(bench, [link(first), link(second, "two", "anthropic")]) as desk,
    ):
        assert desk.ask("Who?") == "One."
        for trouble in (broken, Reply(status=529), Reply(status=429, retry_after="100"), Reply(status=500)):
            first.script = lambda body, trouble=trouble: trouble  # type: ignore[misc]
            desk.agent.chain.links[0].rests_until = 0.0
            assert desk.ask("Who?") == "Two."
            assert "asking two instead" in desk.view.notes[-1]
        asked = len(first.bodies)
        assert desk.ask("Who?") == "Two."
        assert len(first.bodies) == asked, "the one that rests was asked"
        assert desk.view.taken_back == 4
    assert [m["content"] for m in desk.messages if m["role"] == "assistant"] == ["One.", *["Two."] * 5]


def test_what_gemini_signs_goes_back_to_it_with_the_call_and_to_nobody_else(bench: Bench) -> None:
    script = after_tools(("c1", "read_file", {"path": "inside.txt"}), ("c2", "find_files", {"pattern": "*"}))
    with (
        model_server(script, dialect=DIALECTS["gemini"]) as gemini,
        model_server(lambda body: Reply(["Two."])) as other,
        Desk(bench, [link(gemini, kind="gemini"), link(other, "two")]) as desk,
    ):
        desk.ask("Read it.")
        for name in ("two", "one"):
            desk.agent.chain.prefer(name)
            desk.ask("And now?")

        def extras(body: Body) -> list[Any]:
            return [call.get("extra_content") for m in body["messages"] for call in m.get("tool_calls", [])]

        assert [extras(body) for body in gemini.requests[:2]] == [[], [SIGNED, None]]
        assert [extras(body) for body in other.requests] == [[None, None]]
        assert extras(gemini.requests[2]) == [SIGNED, None]


def test_a_wrong_key_is_not_moved_on_from(bench: Bench) -> None:
    with (
        model_server(lambda body: Reply(["One."]), key="right") as first,
        model_server(lambda body: Reply(["Two."])) as second,
        Desk(bench, [link(first, key="sk-wrong-key"), link(second, "two")]) as desk,
    ):
        with pytest.raises(ProviderError) as refused:
            desk.ask("Who?")
        assert "sk-wrong-key" not in str(refused.value)
        assert desk.messages[-1] == {"role": "user", "content": "Who?"}
        first.key = None
        desk.agent.answer(desk.view)
        assert desk.messages[-1]["content"] == "One."


def test_a_single_provider_is_asked_again_after_the_time_that_it_names(bench: Bench) -> None:
    replies = iter([Reply(status=429, retry_after="9"), Reply(status=529), Reply(["At last."])])
    with model_server(lambda body: next(replies)) as server, Desk(bench, [link(server)]) as desk:
        assert desk.ask("Please?") == "At last."
        assert desk.waits == [9.0, 2.0]


def test_what_has_no_answer_is_asked_together_with_what_is_said_next(bench: Bench) -> None:
    with model_server(lambda body: Reply(status=404)) as server, Desk(bench, [link(server)]) as desk:
        with pytest.raises(ProviderError):
            desk.ask("One?")
        server.script = lambda body: Reply(["Both."])
        desk.ask("Two?")
        assert [m["content"] for m in desk.messages if m["role"] == "user"] == ["One?\n\nTwo?"]


def test_a_prompt_that_is_too_long_is_cut_further(bench: Bench) -> None:
    def script(body: Body) -> Reply:
        size = len(json.dumps(body["messages"]))
        return Reply(status=400, error="exceed_context_size_error") if size > 6_000 else Reply(["Fine."])

    with model_server(script) as server, Desk(bench, [Link(link(server).provider, 8_000)], tools="none") as desk:
        for number in range(12):
            assert desk.ask(f"Number {number}: " + "words and " * 120) == "Fine."


def test_a_prompt_that_fits_nowhere_costs_no_context(bench: Bench) -> None:
    too_long = Reply(status=400, error="exceed_context_size_error")
    with (
        model_server(lambda body: too_long) as first,
        model_server(lambda body: Reply(["Two."])) as second,
        Desk(bench, [link(first)], tools="none") as desk,
    ):
        chain = desk.agent.chain
        with pytest.raises(ProviderError):
            desk.ask("Long?")
        assert len(first.bodies) > 1
        assert chain.links[0].context == 8_192
        chain.links.append(link(second, "two"))
        assert desk.ask("Who?") == "Two."
        assert [one.context for one in chain.links] == [8_192, 8_192]


# The history


def test_prompts_are_prefixes_of_the_next_between_two_cuts_and_what_is_dropped_is_found(bench: Bench) -> None:
    """Thirty turns with tools, over a restart of the chat, asserted on the wire."""

    def script(body: Body) -> Reply:
        last = body["messages"][-1]
        if last["role"] == "user":
            number = last["content"].partition(":")[0].rpartition(" ")[2]
            return Reply(["Let me look."], ["Hm."], calls=[(f"c{number}", "find_files", {"pattern": f"*{number}"})])
        return Reply(["It is so. " * 20])

    with model_server(script) as server:
        for half in range(2):
            with Desk(bench, [Link(link(server).provider, 4_096)], tools="find_files", resume=half > 0) as desk:
                for turn in range(15):
                    desk.ask(f"Question {half * 15 + turn}: the word is w{half * 15 + turn}ord. " + "Tell me. " * 40)
        assert len(server.bodies) == 60
        prompts = list(map(messages_on_the_wire, server.bodies))
        parted = [after for before, after in pairwise(prompts) if not after.startswith(before)]
        others = {json.dumps({k: v for k, v in body.items() if k != "messages"}) for body in server.requests}
    assert len(others) == 1, "something else than the messages changed"
    with Desk(bench, [link(server)], resume=True) as desk:
        n_cuts = choose(desk.agent.session.rows, room(4_096, desk.agent._count_tools())).n_cuts
        assert len(parted) == n_cuts > 1
        assert all(json.dumps(NOTE)[1:-1].encode() in prompt for prompt in parted)
        found = UserMemory(desk.sessions.memory, "").search("w0ord")
        assert [one.entry.seq for one in found] == [1]
        assert len([m for m in desk.messages if m["role"] == "user"]) == 30


def test_a_session_goes_on_after_a_crash_at_its_last_whole_message(bench: Bench) -> None:
    with model_server(after_tools(("c1", "read_file", {"path": "inside.txt"}))) as server:
        with Desk(bench, [link(server)]) as desk:
            desk.agent.say("Read it.")
            desk.agent._round(desk.view)  # the process dies before the call was made
        with Desk(bench, [link(server)], resume=True) as desk:
            assert desk.messages[-1] == {"role": "tool", "tool_call_id": "c1", "content": NO_RESULT}
            desk.agent.answer(desk.view)
            assert desk.messages[-1]["content"] == f"Done: {NO_RESULT}"
