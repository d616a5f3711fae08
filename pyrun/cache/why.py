"""Tells why prompts were evaluated, from the last requests of a running server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from pyrun.server.ask import ask


@dataclass(frozen=True)
class Finished:
    """One request. `reason`, `at` and the words are there where more than the last token was evaluated."""

    at_ms: int
    reused: int
    evaluated: int
    source: str
    reason: str | None
    at: int | None
    words: str | None  # they stand on both sides of where the prompt left what is known
    advice: str | None
    stable: tuple[str, ...]  # what of the prompt was made stable


def finished_requests(url: str, key: str | None = None, user: str = "", model: str | None = None) -> list[Finished]:
    """Gives the last requests, the newest first. `model` is as for `ask`."""
    path = "/cache/requests" + (f"?user_id={quote(user, safe='')}" if user else "")
    return [_finished(told) for told in ask(url, path, key, model=model)["requests"]]


def _finished(told: dict[str, Any]) -> Finished:
    miss, parted = told.get("cache_miss", {}), told.get("parted", {})
    return Finished(
        at_ms=told["at_ms"],
        reused=told["tokens_reused"],
        evaluated=told["tokens_evaluated"],
        source=told["cache_source"],
        reason=miss.get("reason"),
        at=miss.get("at"),
        words=parted.get("words"),
        advice=parted.get("advice") or None,
        stable=tuple(told.get("stable_prompt", ())),
    )
