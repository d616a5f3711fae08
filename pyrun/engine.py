"""llama-run for Python programs: starts a server or joins one, asks it, and says what each answer cost.

    from pyrun import Engine

    with Engine() as engine:
        print(engine.chat([{"role": "user", "content": "Hello!"}]).text)

An engine may be used by several threads at once: every request has a connection of its own.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any
from urllib.parse import quote

from pyrun import console
from pyrun.errors import UserError
from pyrun.server.address import Address
from pyrun.server.ask import ask, asking, await_loaded, health
from pyrun.server.served import choose_served, load
from pyrun.server.usual import find_server, usual_server
from pyrun.service import background

Messages = Sequence[Mapping[str, Any]]

SILENT_SECONDS = 5.0  # a start that takes longer is told of: the first one compiles llama.cpp for minutes
POLL_SECONDS = 0.2
# Where rounding alone makes two runs choose another token, the two have almost the same probability.
TIE = 0.05
CANDIDATES = 5
# What POST /completion says of its end, in the words of the chat.
REASONS = {"eos": "stop", "word": "stop", "limit": "length"}


@dataclass(frozen=True)
class Answer:
    text: str
    ttft_ms: float  # from sending the request to the first token, be it of reasoning, of a call or of the text
    timings: Mapping[str, Any] = field(default_factory=dict, repr=False)  # as the server says them: docs/http-api.md
    reasoning: str = ""  # what the model thought before it answered
    # What the model wants done, as OpenAI's API has it: a message with them goes back as it is.
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str | None = None  # stop, length or tool_calls

    @property
    def tokens_reused(self) -> int:
        return int(self.timings.get("cache_n", 0))

    @property
    def tokens_evaluated(self) -> int:
        return int(self.timings.get("prompt_n", 0))

    @property
    def reuse_ratio(self) -> float:
        """How much of the prompt was not evaluated, from 0 to 1."""
        total = self.tokens_reused + self.tokens_evaluated
        return self.tokens_reused / total if total else 0.0

    @property
    def source(self) -> str:
        """Where the state came from, as the server names it: `none` where nothing was reused."""
        return str(self.timings.get("cache_source", "none"))


class Stream:
    """The pieces of an answer as they come. When they are all there, `answer` has the whole."""

    def __init__(self, pieces: Iterator[str | Answer]) -> None:
        self._pieces = pieces
        self.answer: Answer | None = None

    def __iter__(self) -> Iterator[str]:
        for piece in self._pieces:
            if isinstance(piece, Answer):
                self.answer = piece
            else:
                yield piece

    def wait(self) -> Answer:
        """Takes the rest, and gives the whole."""
        for _ in self:
            pass
        if self.answer is None:
            raise UserError("the server ended its answer without saying so", "its log tells more: `llama-run logs`")
        return self.answer


@dataclass(frozen=True)
class Verified:
    """One prompt, answered from reused state and cold, by the likeliest tokens."""

    prompt: str
    tokens_reused: int
    reused: str
    cold: str
    is_same: bool  # but for tokens that were equally likely


class Engine:
    """A running server. One that was started here ends with the engine; one that was joined is left alone."""

    def __init__(
        self,
        model: str | None = None,
        *,
        url: str | None = None,
        port: int | None = None,
        key: str | None = None,
        arguments: Sequence[str] = (),
        keep: bool = False,
    ) -> None:
        """Joins the server at `url`, at `port`, or where llama-run.toml says; where there is none, `model` is served
        there.

        Of a server with several models, `model` is the name of one, or a part of it. `arguments` are llama-server's,
        for a server that is started. With `keep`, it goes on when the engine is closed.
        """
        self._started: background.Started | None = None
        self._keep = keep
        self._checks = url is not None  # a certificate is for the names that others call this machine by
        if url is not None:
            self.url, found = find_server(url)
        else:
            chosen = [] if port is None else ["--port", str(port)]
            address, found = usual_server([*arguments, *chosen], model)
            self.url = address.url
        self.key = key if key is not None else found
        try:
            if url is None and health(self.url) is None:
                self._start(model, address, arguments)
            elif health(self.url) == 503:
                await_loaded(self.url)
            self._served = choose_served(self.url, self.key, model, "name one of them", verify=self._checks)
        except BaseException:  # also Ctrl-C, while a first start compiles
            self.close()
            raise

    def _start(self, model: str | None, address: Address, arguments: Sequence[str]) -> None:
        """Where `llama-run start` has begun to, its server is waited for."""
        from pyrun.cli.background import own_command  # what it loads is not needed to join a server
        from pyrun.home import find_home

        logs = find_home().logs
        served = f"--server={model}" if model else "--server"
        command = [*own_command(), served, "--", *arguments, *address.words]
        started = background.find(logs, address.port)
        if started is None:
            self._started = started = background.start(command, logs, address.port, self.url)
        asked, told = time.monotonic(), False
        while health(self.url) != 200:
            if started.process() is None:
                raise UserError("the server did not start", f"{started.log} says why")
            if not told and time.monotonic() - asked > SILENT_SECONDS:
                told = True
                console.say(f"starting a server for {self.url}: {started.log} shows how far")
            time.sleep(POLL_SECONDS)

    @property
    def model(self) -> str:
        """What the server calls it."""
        return self._served.name

    def generate(self, prompt: str, *, max_tokens: int = 256, user: str = "", **options: Any) -> Answer:
        """Continues a text. `options` are further fields of the request, such as temperature."""
        return self.generate_stream(prompt, max_tokens=max_tokens, user=user, **options).wait()

    def generate_stream(self, prompt: str, *, max_tokens: int = 256, user: str = "", **options: Any) -> Stream:
        body = self._body(user, options) | {"prompt": prompt, "n_predict": max_tokens, "stream": True}
        return Stream(self._pieces("/completion", body))

    def chat(self, messages: Messages, *, max_tokens: int = 256, user: str = "", **options: Any) -> Answer:
        """Answers a conversation. `options` are further fields of the request, such as tools."""
        return self.chat_stream(messages, max_tokens=max_tokens, user=user, **options).wait()

    def chat_stream(self, messages: Messages, *, max_tokens: int = 256, user: str = "", **options: Any) -> Stream:
        body = self._body(user, options) | {"messages": list(messages), "max_tokens": max_tokens, "stream": True}
        return Stream(self._pieces("/v1/chat/completions", body))

    def warm(self, prompt: str | Messages, *, user: str = "", **options: Any) -> dict[str, Any]:
        """Evaluates what a prompt or conversation begins with and keeps its state; gives what the server says of it."""
        return self._ask("/cache/warm", post=self._body(user, options) | _begins(prompt), patience=None)

    def plan(self, prompt: str | Messages, *, user: str = "", **options: Any) -> dict[str, Any]:
        """Says what a prompt or conversation would reuse and how long it would take, and evaluates nothing."""
        return self._ask("/cache/plan", post=self._body(user, options) | _begins(prompt))

    def cache(self, user: str = "") -> dict[str, Any]:
        """What the server says about its cache."""
        return self._ask("/cache" + (f"?user_id={quote(user, safe='')}" if user else ""))

    def verify(self, prompts: Sequence[str], *, max_tokens: int = 32, user: str = "") -> list[Verified]:
        """Compares answers from reused state with cold ones, token by token."""
        return [self._verify(prompt, max_tokens, user) for prompt in prompts]

    def _verify(self, prompt: str, max_tokens: int, user: str) -> Verified:
        options = {"temperature": 0.0, "n_predict": max_tokens, "n_probs": CANDIDATES, "prompt": prompt}
        greedy = self._body(user, options)
        self._post("/completion", greedy)  # its state is there for the next one
        reused = self._post("/completion", greedy)
        cold = self._post("/completion", {**greedy, "cache_prompt": False})
        return Verified(
            prompt,
            int(reused["timings"]["cache_n"]),
            reused["content"],
            cold["content"],
            is_same(reused["completion_probabilities"], cold["completion_probabilities"]),
        )

    def close(self) -> None:
        if self._started is not None and not self._keep:
            from pyrun.home import find_home

            background.stop(find_home().logs, self._started)
        self._started = None

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _body(self, user: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """What every request has: further fields, whose it is, and the model where the server has several."""
        named = {"model": self._served.name} if self._served.is_routed else {}
        return {**named, **options} | ({"llama_user_id": user} if user else {})

    def _ask(self, path: str, **how: Any) -> dict[str, Any]:
        """Asks about the cache of a model, which is there as long as the model is loaded."""
        if self._served.is_routed:
            load(self.url, self.key, self._served, verify=self._checks)
        return dict(ask(self.url, path, self.key, model=self._served.routed_name, verify=self._checks, **how))

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        with self._request(path, body, stream=False) as response:
            return response.json()

    @contextlib.contextmanager
    def _request(self, path: str, body: Mapping[str, Any], *, stream: bool) -> Iterator[Any]:
        """An answer may take as long as it takes: there is a limit for connecting only."""
        import requests

        try:
            with asking(self.url, self._checks) as session:
                response = session.post(
                    self.url + path, json=body, headers=self._headers(), stream=stream, timeout=(10, None)
                )
                with response:
                    if response.status_code != 200:
                        raise UserError(f"{self.url}{path} answers with {response.status_code}", _reason(response))
                    yield response
        except requests.RequestException as error:
            raise UserError(f"the server at {self.url} does not answer: {error}", "is it still running?") from error

    def _pieces(self, path: str, body: Mapping[str, Any]) -> Iterator[str | Answer]:
        """The text as it comes, and at last the whole answer."""
        parts = _Parts()
        with self._request(path, body, stream=True) as response:
            for event in _events(response.iter_lines()):
                if "error" in event:
                    raise UserError(f"the server broke off: {_message(event['error'])}", "its log tells more")
                if piece := parts.take(event):
                    yield piece
        yield parts.answer()


class _Parts:
    """An answer that is coming in."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._first: float | None = None  # when the first token came
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, dict[str, Any]] = {}
        self._reason: str | None = None
        self._timings: dict[str, Any] = {}

    def take(self, event: Mapping[str, Any]) -> str:
        """Gives what the event adds to the text."""
        self._timings = event.get("timings") or self._timings
        if "choices" not in event:  # of POST /completion
            delta, reason = event, REASONS.get(event.get("stop_type", ""))
        else:
            choice = event["choices"][0] if event["choices"] else {}
            delta, reason = choice.get("delta") or {}, choice.get("finish_reason")
        self._reason = reason or self._reason
        text, reasoning, calls = (delta.get(name) for name in ("content", "reasoning_content", "tool_calls"))
        if self._first is None and (text or reasoning or calls):
            self._first = time.monotonic()
        self._reasoning.append(reasoning or "")
        for piece in calls or []:
            self._add_call(piece)
        self._text.append(text or "")
        return text or ""

    def _add_call(self, piece: Mapping[str, Any]) -> None:
        """The first piece of a call has its id and name, and all of them have more of its arguments."""
        new = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        call = self._calls.setdefault(piece["index"], new)
        call["id"] = piece.get("id") or call["id"]
        for name in call["function"]:
            call["function"][name] += piece.get("function", {}).get(name) or ""

    def answer(self) -> Answer:
        ttft = (self._first or time.monotonic()) - self._began
        calls = [self._calls[index] for index in sorted(self._calls)]
        text, reasoning = "".join(self._text), "".join(self._reasoning)
        return Answer(text, ttft * 1000, self._timings, reasoning, calls, self._reason)


def _begins(prompt: str | Messages) -> dict[str, Any]:
    return {"prompt": prompt} if isinstance(prompt, str) else {"messages": list(prompt)}


def _events(lines: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        name, _, data = line.decode("utf-8", "replace").partition(": ")
        if name in ("data", "error") and data != "[DONE]":
            event = json.loads(data)
            yield {"error": event} if name == "error" else event


def _message(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)


def _reason(response: Any) -> str:
    try:
        return _message(response.json()["error"])
    except (ValueError, LookupError, TypeError):
        return "is it a server of llama-run?"


def is_same(reused: Sequence[Mapping[str, Any]], cold: Sequence[Mapping[str, Any]]) -> bool:
    """Two runs are the same up to where they part, and may part at a tie only."""
    for one, other in zip(reused, cold, strict=False):
        if one["id"] != other["id"]:
            likely = {entry["id"]: entry["logprob"] for entry in other["top_logprobs"]}
            return bool(abs(likely.get(one["id"], -1e9) - likely.get(other["id"], 0.0)) < TIE)
    return len(reused) == len(cold)
