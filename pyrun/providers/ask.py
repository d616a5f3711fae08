"""Asking a provider one question. The model that is asked gets no tools: it cannot ask another one in turn."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from pyrun.errors import UserError
from pyrun.providers.events import End, Event, Message, ProviderError, Reasoning, Request, Text, Usage
from pyrun.providers.known import Provider
from pyrun.providers.stream import TIMEOUT_SECONDS, cost, stream

MAX_TOKENS = 4096
CHARACTERS_PER_TOKEN = 4  # about, of any text
LOOK_SECONDS = 0.1  # so long an end may take to be noticed


@dataclass
class Spending:
    """What was spent on each provider since the program began."""

    spent: dict[str, float] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def check(self, provider: Provider) -> None:
        if provider.max_cost is None:
            return
        if provider.prices is None:
            raise UserError(
                f"what {provider.name} costs is not known, so max_cost cannot be kept",
                "add price_prompt and price_answer, in dollars for a million tokens",
            )
        if self.spent.get(provider.name, 0.0) >= provider.max_cost:
            raise UserError(
                f"{provider.name} has cost ${self.spent[provider.name]:.2f}, which is its max_cost",
                "answer without it",
            )

    def add(self, provider: Provider, amount: float) -> None:
        with self.lock:
            self.spent[provider.name] = self.spent.get(provider.name, 0.0) + amount


def ask(
    provider: Provider,
    question: str,
    system: str = "",
    max_tokens: int = MAX_TOKENS,
    spending: Spending | None = None,
    seconds: float = TIMEOUT_SECONDS,
    stopped: threading.Event | None = None,
) -> str:
    """The answer's text. What goes wrong on the other side is told, without the key. Whoever sets `stopped` does not
    wait for it any longer."""
    spending = spending or Spending()
    spending.check(provider)
    messages: list[Message] = [
        *([{"role": "system", "content": system}] if system else []),
        {"role": "user", "content": question},
    ]
    text = ""
    try:
        request = Request(messages, max_tokens=max_tokens)
        for event in _events(provider, request, spending, seconds, stopped or threading.Event()):
            if isinstance(event, Text):
                text += event.text
    except ProviderError as error:
        raise UserError(
            f"{provider.name} did not answer: {error.message}", "check its address, key and model"
        ) from error
    return text


def _events(
    provider: Provider, request: Request, spending: Spending, seconds: float, stopped: threading.Event
) -> Iterator[Event]:
    """Read by a thread of its own, since a server that says nothing cannot be interrupted. Where nobody waits for it
    any longer, it leaves with the next event, or with the program. Then nobody says what it cost: that is guessed."""
    told: queue.SimpleQueue[Event | Exception | None] = queue.SimpleQueue()
    left = threading.Event()

    n_asked = sum(len(str(message["content"])) for message in request.messages)

    def read() -> None:
        n_said = 0
        try:
            for event in stream(provider, request, seconds):
                if isinstance(event, Text | Reasoning):
                    n_said += len(event.text)
                if isinstance(event, End):
                    spending.add(provider, cost(provider, event.usage) or 0.0)
                elif left.is_set():
                    guess = Usage(n_asked // CHARACTERS_PER_TOKEN, answer_tokens=n_said // CHARACTERS_PER_TOKEN)
                    spending.add(provider, cost(provider, guess) or 0.0)
                    return
                told.put(event)
            told.put(None)
        except Exception as error:
            told.put(error)

    threading.Thread(target=read, daemon=True).start()
    deadline = time.monotonic() + seconds
    try:
        while True:
            if stopped.is_set():
                raise UserError(f"{provider.name} was not waited for: the call was cancelled")
            if time.monotonic() > deadline:
                raise UserError(f"{provider.name} did not end within {seconds:.0f} s", "ask for less")
            try:
                event = told.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                continue
            if event is None:
                return
            if isinstance(event, Exception):
                raise event
            yield event
    finally:
        left.set()
