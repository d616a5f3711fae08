"""Asking a provider one question. The model that is asked gets no tools: it cannot ask another one in turn."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from pyrun.errors import UserError
from pyrun.providers.events import End, Message, ProviderError, Request, Text
from pyrun.providers.known import Provider
from pyrun.providers.stream import TIMEOUT_SECONDS, cost, stream

MAX_TOKENS = 4096


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
) -> str:
    """The answer's text. What goes wrong on the other side is told, without the key."""
    spending = spending or Spending()
    spending.check(provider)
    messages: list[Message] = [
        *([{"role": "system", "content": system}] if system else []),
        {"role": "user", "content": question},
    ]
    deadline = time.monotonic() + seconds
    text = ""
    try:
        for event in stream(provider, Request(messages, max_tokens=max_tokens), seconds):
            if isinstance(event, Text):
                text += event.text
            elif isinstance(event, End):
                spending.add(provider, cost(provider, event.usage) or 0.0)
            if time.monotonic() > deadline:
                raise UserError(f"{provider.name} did not end within {seconds:.0f} s", "ask for less")
    except ProviderError as error:
        raise UserError(
            f"{provider.name} did not answer: {error.message}", "check its address, key and model"
        ) from error
    return text
