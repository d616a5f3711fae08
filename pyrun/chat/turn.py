"""One turn: a question, rounds of tools, an answer. History only grows at its end, and only by whole messages.

What a person sees of it is the View's business. Calls of a round run beside one another; all questions to the person
come before the first of them starts.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from pyrun.chat.ahead import Ahead
from pyrun.chat.chain import Chain, Link, Watcher
from pyrun.chat.prompt import Prompt, answer_room, choose, room
from pyrun.chat.sessions import Row, Session, Sessions
from pyrun.chat.stats import Answer, measure
from pyrun.chat.toolset import ALWAYS, NO, SESSION, Prepared, Toolset
from pyrun.errors import UserError
from pyrun.memory.intake import take_in
from pyrun.memory.spool import Record, SpoolFullError, write_spool
from pyrun.memory.text import message_text
from pyrun.providers.events import End, Function, Message, Progress, Reasoning, Request, Text, ToolCall
from pyrun.providers.known import LOCAL
from pyrun.tools.tool import ToolError, shortened

STOPPED = "[stopped by the person]"
REPEATED = (
    "This call was not made: it was made {} times in this turn already, with the same arguments. "
    "Do something else, or answer with what you know."
)
CUT = (
    "This call was not made: the answer reached its limit, and the call may not be whole. "
    "Make it again, with shorter arguments or in several calls."
)


@dataclass(frozen=True)
class Limits:
    rounds: int = 30  # of tools, in one turn
    seconds: float = 3_600.0  # of a turn; a round that runs is not cut off
    call_seconds: float = 660.0  # tools have limits of their own, below this one
    answer_tokens: int | None = None  # of one answer; what the context leaves, if left out
    equal_calls: int = 3
    result_characters: int = 30_000


class View(Watcher, Protocol):
    def progress(self, done: int, total: int) -> None:
        """So many tokens of the prompt are evaluated or reused; the answer begins when all are."""

    def text(self, text: str) -> None: ...
    def reasoning(self, text: str) -> None: ...
    def calls(self, calls: Sequence[ToolCall]) -> None:
        """The model wants these; they are asked about next."""

    def running(self, call: ToolCall, seconds: float) -> None: ...
    def result(self, call: ToolCall, result: str, failed: bool) -> None: ...
    def answered(self, answer: Answer) -> None: ...
    def may(self, call: ToolCall, prepared: Prepared) -> str:
        """once, session, always or no."""


@dataclass
class _Running:
    call: ToolCall
    prepared: Prepared | None = None
    result: str = ""
    failed: bool = False
    done: threading.Event = field(default_factory=threading.Event)


class Agent:
    """A session, who answers in it, and with which tools."""

    def __init__(
        self,
        sessions: Sessions,
        session: Session,
        chain: Chain,
        toolset: Toolset,
        count: Callable[[str], int],
        limits: Limits | None = None,
    ) -> None:
        self.sessions = sessions
        self.session = session
        self.chain = chain
        self.toolset = toolset
        self.count = count
        self.limits = limits or Limits()
        self.ahead = Ahead()
        self._tool_tokens: tuple[list[Function], int] | None = None

    # What a person does

    def say(self, text: str) -> None:
        """Adds to the history. What has no answer yet and what is said now become one message: most models know only
        conversations that take turns."""
        if before := self.take_back():
            text = f"{before}\n\n{text}"
        self.sessions.heal(self.session)
        self._append({"role": "user", "content": text})

    def take_back(self) -> str | None:
        """The question at the end that has no answer, if there is one: it leaves the history."""
        if self.session.last_role != "user":
            return None
        return str(self.sessions.truncate(self.session, len(self.session.rows) - 1)[0].message["content"])

    def answer(self, view: View) -> None:
        """Goes on from the end of the history until the model has nothing more to do. Raises ProviderError."""
        self.sessions.heal(self.session)
        began = time.monotonic()
        made: dict[str, int] = {}
        why = f"stopped after {self.limits.rounds} rounds of tools"
        for _ in range(self.limits.rounds):
            calls = self._round(view)
            if not calls:
                return
            self._run_calls(calls, made, view)
            if time.monotonic() - began > self.limits.seconds:
                why = f"stopped after {self.limits.seconds / 60:.0f} minutes"
                break
            if max(made.values()) >= 2 * self.limits.equal_calls:
                why = "stopped: the model makes the same call again and again"
                break
        self._append({"role": "assistant", "content": f"[{why}]"})
        view.note(f"{why}; say something to go on")

    def look_ahead(self) -> None:
        """While the person reads: the prompt behind the next cut is evaluated, if that is near."""
        link = self.chain.current
        prompt = self._choose(link)
        messages = prompt.ahead
        while messages and messages[-1]["role"] == "assistant":
            messages = messages[:-1]  # a server would take it for the beginning of the answer that it is asked for
        if messages and link.provider.kind == LOCAL:
            request = Request(messages, tuple(self.session.tools), 1, self.session.name)
            self.ahead.start(link.provider, request, (self.session.name, prompt.n_cuts))

    # One round

    def _round(self, view: View) -> list[ToolCall]:
        text, thought, end = "", "", None
        calls: list[ToolCall] = []
        watch = _Watch(view)
        n_rows = len(self.session.rows)
        try:
            for event in self.chain.answer(self._request, watch):
                if watch.restarted:
                    text, thought, calls, watch.restarted = "", "", [], False
                watch.hears(event)
                if isinstance(event, Text):
                    text += event.text
                    view.text(event.text)
                elif isinstance(event, Reasoning):
                    thought += event.text
                    view.reasoning(event.text)
                elif isinstance(event, ToolCall):
                    calls.append(event)
                elif isinstance(event, Progress):
                    view.progress(event.done, event.total)
                else:
                    end = event
            assert end is not None
            if calls and end.reason == "length":
                calls[-1] = replace(calls[-1], is_cut=True)
            answer = measure(self.chain.current, watch.begun, watch.first, time.monotonic(), end)
            self._append(_assistant(text, thought, calls, end), answer.about())
        except KeyboardInterrupt:
            if len(self.session.rows) == n_rows:  # it came before the answer was stored
                if watch.restarted:
                    text = thought = ""  # what was shown was said not to count
                self._keep_stopped(text, thought)
            raise
        view.answered(answer)
        if end.reason == "length":
            what_next = "the model is told" if calls else "ask for the rest"
            view.note(f"the answer reached its limit and was cut; {what_next}")
        return calls

    def _keep_stopped(self, text: str, thought: str) -> None:
        """What was said stays said."""
        if text.strip():
            self._append(_assistant(text, thought, [], None), {"stopped": True})
        elif self.session.last_role == "tool":
            self._append({"role": "assistant", "content": STOPPED}, {"stopped": True})

    def _request(self, link: Link) -> Request:
        self.ahead.stop()
        prompt = self._choose(link)
        self._archive(prompt.dropped)
        most = self.limits.answer_tokens or answer_room(link.context)
        return Request(prompt.messages, tuple(self.session.tools), most, self.session.name)

    def _choose(self, link: Link) -> Prompt:
        return choose(self.session.rows, room(link.context, self._count_tools()))

    def _count_tools(self) -> int:
        if self._tool_tokens is None or self._tool_tokens[0] is not self.session.tools:
            text = json.dumps([vars(tool) for tool in self.session.tools], ensure_ascii=False)
            self._tool_tokens = (self.session.tools, self.count(text) if self.session.tools else 0)
        return self._tool_tokens[1]

    def _archive(self, dropped: list[int]) -> None:
        """What no longer is sent can be found again. The archive knows what it has, so that twice does no harm."""
        new = [index for index in dropped if index >= self.session.archived]
        if not new:
            return
        records = [Record(index, self.session.rows[index].message) for index in new]
        memory = self.sessions.memory
        self.sessions.ensure(self.session)
        try:
            write_spool(memory.spool, self.sessions.key, self.session.name, records)
        except SpoolFullError:
            return  # they are still in the session
        take_in(memory)
        self.sessions.set_archived(self.session, new[-1] + 1)

    # Tools

    def _run_calls(self, calls: list[ToolCall], made: dict[str, int], view: View) -> None:
        running = [_Running(call) for call in calls]
        view.calls(calls)
        try:
            for one in running:
                self._decide(one, made, view)
            for one in running:
                if one.prepared is not None:
                    threading.Thread(target=_run, args=(one, one.prepared), daemon=True).start()
            self._await(running, view)
        except KeyboardInterrupt:
            for one in running:
                if one.prepared is not None:
                    one.prepared.stopped.set()
                if not one.done.is_set():
                    one.result, one.failed = "The person stopped this call. Whether it was made is not known.", True
            self._append_results(running)
            self._append({"role": "assistant", "content": STOPPED}, {"stopped": True})
            raise
        self._append_results(running)

    def _decide(self, one: _Running, made: dict[str, int], view: View) -> None:
        """Whether the call is made; if not, the result says why."""
        key = f"{one.call.name} {one.call.arguments}"
        made[key] = made.get(key, 0) + 1
        try:
            if made[key] > self.limits.equal_calls:
                raise ToolError(REPEATED.format(self.limits.equal_calls))
            if one.call.is_cut:
                raise ToolError(CUT)
            prepared = self.toolset.prepare(one.call)
            if prepared.needs_consent:
                self._ask(one.call, prepared, view)
        except (ToolError, UserError, OSError) as error:
            one.result, one.failed = str(error), True
            one.done.set()
            view.result(one.call, one.result, True)
        else:
            one.prepared = prepared

    def _ask(self, call: ToolCall, prepared: Prepared, view: View) -> None:
        try:
            said = view.may(call, prepared)
        except KeyboardInterrupt:
            with suppress(OSError):  # of the audit log: who leaves is not kept by it
                prepared.refused("the person left the question")
            raise
        if said == NO:
            raise prepared.refused("the person did not allow it")
        if said in (SESSION, ALWAYS):
            self.toolset.allow(prepared.rule, always=said == ALWAYS)

    def _await(self, running: list[_Running], view: View) -> None:
        began = time.monotonic()
        waiting = [one for one in running if one.prepared is not None]
        while waiting:
            waiting[0].done.wait(0.1)
            seconds = time.monotonic() - began
            for one in list(waiting):
                if not one.done.is_set() and seconds > self.limits.call_seconds:
                    assert one.prepared is not None
                    one.prepared.stopped.set()
                    one.result, one.failed = f"it did not end within {self.limits.call_seconds:.0f} seconds", True
                    one.done.set()
                if one.done.is_set():
                    waiting.remove(one)
                    view.result(one.call, one.result, one.failed)
            if waiting:
                view.running(waiting[0].call, seconds)

    def _append_results(self, running: list[_Running]) -> None:
        most = min(self.limits.result_characters, self._most_result_characters())
        self._append_all(
            {"role": "tool", "tool_call_id": one.call.id, "content": shortened(one.result, most)} for one in running
        )

    def _most_result_characters(self) -> int:
        """No result may fill more than a quarter of what the conversation has room for."""
        return max(1_000, room(self.chain.current.context, self._count_tools()))

    # The history

    def _append(self, message: Message, about: dict[str, Any] | None = None) -> None:
        self.sessions.append(self.session, [Row(message, self.count(message_text(message)), about or {})])

    def _append_all(self, messages: Any) -> None:
        self.sessions.append(self.session, [Row(message, self.count(message_text(message))) for message in messages])


def _run(one: _Running, prepared: Prepared) -> None:
    try:
        result, failed = prepared.run(), False
    except ToolError as error:
        result, failed = str(error), True
    except Exception as error:  # a tool that breaks must not break the chat
        result, failed = f"the tool broke: {type(error).__name__}: {error}", True
    if not one.done.is_set():  # it may have been given up
        one.result, one.failed = result, failed
        one.done.set()


def _assistant(text: str, thought: str, calls: list[ToolCall], end: End | None) -> Message:
    message: Message = {"role": "assistant", "content": text}
    if thought:
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = [_stored(call) for call in calls]
    if end is not None and end.thinking:
        message["thinking"] = list(end.thinking)
    return message


def _stored(call: ToolCall) -> dict[str, Any]:
    stored = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
    return stored if call.extra_content is None else {**stored, "extra_content": call.extra_content}


class _Watch:
    """Times an answer, and notices when it begins anew with another provider."""

    def __init__(self, view: View) -> None:
        self._view = view
        self.begun = time.monotonic()
        self.first: float | None = None
        self.restarted = False

    def hears(self, event: Any) -> None:
        if self.first is None and not isinstance(event, Progress | End):
            self.first = time.monotonic()

    def begins(self, link: Link) -> None:
        self.begun, self.first = time.monotonic(), None
        self._view.begins(link)

    def takes_back(self) -> None:
        self.restarted = True
        self._view.takes_back()

    def note(self, text: str) -> None:
        self._view.note(text)
