"""Follows what a running server does now: its slots, who waits, and requests as they end. And puts that into words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyrun import console
from pyrun.errors import UserError
from pyrun.server.ask import asking, of_model, refused_with

SILENCE_SECONDS = 20.0  # the server says something every 5 s
SOURCES = {"slot": "its slot", "hot": "RAM", "warm": "RAM", "cold": "disk", "shared_folder": "shared folder"}
WAITS = {"slot": "a free slot", "files": "its files", "prefix": "the same beginning, evaluated for another request"}


@dataclass(frozen=True)
class Event:
    name: str  # hello, slots, request or lost
    data: dict[str, Any]


def events(url: str, key: str | None = None, *, model: str | None = None, verify: bool = True) -> Iterator[Event]:
    """Gives what happens, as it happens, until the server goes or is silent for too long. `model` is as for `ask`."""
    import requests

    try:
        with asking(url, verify) as session:
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            path = of_model("/cache/events", model)
            with session.get(f"{url}{path}", headers=headers, stream=True, timeout=SILENCE_SECONDS) as answer:
                refused_with(answer, url, path)
                yield from parse_events(line.decode() for line in answer.iter_lines(chunk_size=None))
    except (requests.RequestException, ValueError) as error:
        raise UserError(f"no server answers at {url}", "start one with `llama-run --server`") from error


def parse_events(lines: Iterator[str]) -> Iterator[Event]:
    """Reads server-sent events, each of which ends with an empty line."""
    name, data = "", ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            data += line.removeprefix("data: ")
        elif not line:
            if data:
                yield Event(name, json.loads(data))
            name, data = "", ""


def milliseconds(ms: float) -> str:
    """Tells a wait: short ones differ by milliseconds."""
    return f"{ms:.0f} ms" if ms < 1000 else f"{ms / 1000:.1f} s" if ms < 60000 else console.duration(ms / 1000)


def slot_line(slot: dict[str, Any]) -> str:
    """Says what a slot does; an idle one does nothing."""
    name, phase = f"slot {slot['id']}", slot["phase"]
    if "tokens" not in slot:
        return f"{name}: {phase}"
    tokens, reused = slot["tokens"], slot["tokens_reused"]
    speed = f", {slot['tokens_per_s']:.1f} tokens/s" if slot["tokens_per_s"] > 0 else ""
    if phase == "answering":
        return f"{name}: answering, {slot['tokens_answered']:,} tokens{speed}"
    if phase == "restoring":
        return f"{name}: restoring, {tokens:,} tokens, for {milliseconds(slot['for_ms'])}"
    left = f", about {console.duration(slot['left_ms'] / 1000)} left" if "left_ms" in slot else ""
    return f"{name}: {reused + slot['tokens_evaluated']:,} of {tokens:,} tokens, {reused:,} reused{speed}{left}"


def waiting_line(told: dict[str, Any]) -> str:
    return f"waiting: {told['tokens']:,} tokens for {WAITS.get(told['waits_for'], told['waits_for'])}"


def request_line(told: dict[str, Any]) -> str:
    """Says what became of a request."""
    reused, evaluated, answered = told["tokens_reused"], told["tokens_evaluated"], told["tokens_answered"]
    source = f" from {SOURCES[told['cache_source']]}" if told["cache_source"] in SOURCES else ""
    planned = f" (planned {milliseconds(told['planned_ms'])})" if "planned_ms" in told else ""
    first = f", first token after {milliseconds(told['first_token_ms'])}{planned}" if "first_token_ms" in told else ""
    speed = (
        f" at {1000 * (answered - 1) / told['answer_ms']:.1f} tokens/s" if answered > 1 and told["answer_ms"] else ""
    )
    return f"{reused:,} of {reused + evaluated:,} tokens reused{source}{first}, {answered:,} answered{speed}"
