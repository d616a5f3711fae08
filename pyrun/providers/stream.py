"""Asking a provider, whichever language it speaks: an answer is a stream of events."""

from __future__ import annotations

from collections.abc import Iterator

from pyrun.providers import anthropic_stream, openai_stream
from pyrun.providers.events import Event, Request, Usage
from pyrun.providers.known import Provider

TIMEOUT_SECONDS = 600.0  # between two pieces of an answer: a cold prompt on a small machine takes minutes


def stream(provider: Provider, request: Request, timeout: float = TIMEOUT_SECONDS) -> Iterator[Event]:
    """Ends with `End`, or raises ProviderError. Whoever closes it early, closes the connection."""
    speak = anthropic_stream.stream if provider.protocol == "anthropic" else openai_stream.stream
    return speak(provider, request, timeout)


def cost(provider: Provider, usage: Usage) -> float | None:
    """In dollars; None where no prices are known. What a server read from its cache is cheaper, if it says how much."""
    prices = provider.prices
    if prices is None:
        return 0.0 if provider.kind == "local" else None
    cached = prices.prompt if prices.cached is None else prices.cached
    fresh = usage.prompt_tokens - usage.cached_tokens
    return (fresh * prices.prompt + usage.cached_tokens * cached + usage.answer_tokens * prices.answer) / 1_000_000
