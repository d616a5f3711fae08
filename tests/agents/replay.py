"""Fixtures written out again as the requests they were made of, and what of each a perfect cache would not evaluate."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.prose import expand
from agents.record import Json

FIXTURES = Path(__file__).parent / "fixtures"
BILLING = re.compile(r"x-anthropic-billing-header: ")


@dataclass(frozen=True)
class Request:
    path: str
    headers: dict[str, str]
    body: Json

    def texts(self) -> list[str]:
        """What of the body the model reads, in the order of a chat template: system, tools, messages."""
        return [text for text in _texts(self.body) if not BILLING.match(text)]


@dataclass(frozen=True)
class Fixture:
    agent: str
    version: str
    sessions: tuple[tuple[Request, ...], ...]


def names() -> list[str]:
    return sorted(path.stem for path in FIXTURES.glob("*.json"))


def load(name: str, shrink: int = 1) -> Fixture:
    """With lines of text `shrink` times as short as they were."""
    told = json.loads((FIXTURES / f"{name}.json").read_text(encoding="utf-8"))
    sessions = tuple(
        tuple(_request(request, told["common"], shrink) for request in session) for session in told["sessions"]
    )
    return Fixture(told["agent"], told["version"], sessions)


def _request(told: Json, common: Json, shrink: int) -> Request:
    body = {key: value for key, value in (copy.deepcopy(common) | told["body"]).items() if value is not None}
    return Request(told["path"], told["headers"], _expand(body, shrink))


def _expand(value: Any, shrink: int) -> Any:
    if isinstance(value, dict):
        return {key: _expand(inner, shrink) for key, inner in value.items()}
    if isinstance(value, list):
        return [_expand(inner, shrink) for inner in value]
    return expand(value, shrink) if isinstance(value, str) else value


def _texts(body: Json) -> Iterator[str]:
    """Names and schemas of tools are texts, too; ids and roles are not."""
    turns = [*(body.get("messages") or []), *(body.get("input") or [])]
    # What stands in the system's name before the model's first words belongs to the beginning, wherever it is sent.
    opening = next((n for n, turn in enumerate(turns) if turn.get("role") == "assistant"), len(turns))
    system = [turn for turn in turns[:opening] if turn.get("role") in ("system", "developer")]
    yield from _leaves(body.get("system"))
    for turn in system:
        yield from _leaves(turn.get("content"))
    if body.get("tools"):
        yield json.dumps(body["tools"])
    for turn in turns:
        if not any(turn is one for one in system):
            for key in ("content", "tool_calls", "name", "arguments", "output"):
                yield from _leaves(turn.get(key))


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    elif isinstance(value, dict):
        for key in ("text", "content", "name", "input", "function", "arguments", "command"):
            yield from _leaves(value.get(key))


def new_text(request: Request, known: list[Request]) -> str:
    """What follows the longest beginning that the request has in common with a known one."""
    mine = "\n".join(request.texts())
    return mine[max((_common(mine, "\n".join(one.texts())) for one in known), default=0) :]


def _common(one: str, other: str) -> int:
    """The length of the beginning that two texts share."""
    shorter = min(len(one), len(other))
    return next((n for n in range(shorter) if one[n] != other[n]), shorter)
