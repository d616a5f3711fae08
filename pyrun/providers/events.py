"""What a model's answer consists of, whichever language its server speaks, and what can go wrong with it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]  # in the shape of OpenAI's chat API; what only Anthropic's has is under `thinking`


@dataclass(frozen=True)
class Function:
    """A tool as a model is told of it."""

    name: str
    description: str
    schema: dict[str, Any]


@dataclass(frozen=True)
class Request:
    messages: list[Message]
    tools: tuple[Function, ...] = ()
    max_tokens: int | None = None
    conversation: str = ""  # by which a server knows that requests belong together


@dataclass(frozen=True)
class Usage:
    prompt_tokens: int = 0  # all of them
    cached_tokens: int = 0  # of them, read from the server's cache
    written_tokens: int = 0  # of them, written to it at a price
    answer_tokens: int = 0
    reasoning_tokens: int = 0  # of the answer's


@dataclass(frozen=True)
class Progress:
    """How many tokens of the prompt a llama-server has evaluated or reused, before it answers."""

    done: int
    total: int


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class Reasoning:
    text: str


@dataclass(frozen=True)
class ToolCall:
    id: str
    name: str
    arguments: str  # JSON as the model wrote it, which may be none
    extra_content: Any = None  # what Gemini wants back with the call, as it came: it signs its thoughts there
    is_cut: bool = False  # the answer reached its limit while the model may still have been writing it

    def parsed(self) -> dict[str, Any]:
        """Raises ValueError where it is no object."""
        return parse_arguments(self.arguments)


def parse_arguments(arguments: str) -> dict[str, Any]:
    """Raises ValueError or RecursionError where a model wrote something else than an object."""
    value = json.loads(arguments or "{}")
    if not isinstance(value, dict):
        raise ValueError("the arguments are no JSON object")
    return value


def sendable_arguments(arguments: str) -> str:
    """As they were written, or in an object: a server refuses every prompt that has other arguments in its history."""
    try:
        parse_arguments(arguments)
    except (ValueError, RecursionError):
        return json.dumps({"unreadable": arguments}, ensure_ascii=False)
    return arguments or "{}"


@dataclass(frozen=True)
class End:
    """The last event of every answer that came whole."""

    reason: str  # stop, tool_calls, length, refusal
    usage: Usage = field(default_factory=Usage)
    timings: dict[str, Any] = field(default_factory=dict)  # of a llama-server
    thinking: tuple[dict[str, Any], ...] = ()  # signed blocks that Anthropic's API wants back, as they came


Event = Progress | Text | Reasoning | ToolCall | End

# Kinds of trouble. For those of MOVES_ON, another provider may do better.
UNREACHABLE, OVERLOADED, OVER_LIMIT, TOO_LONG, CUT = "unreachable", "overloaded", "over limit", "too long", "cut off"
REFUSED, WRONG = "refused", "wrong"
MOVES_ON = (UNREACHABLE, OVERLOADED, OVER_LIMIT, TOO_LONG, CUT)
PASSES = (OVERLOADED, OVER_LIMIT)  # waiting may help


class ProviderError(Exception):
    """What went wrong on the other side. Its text never has the key."""

    def __init__(self, kind: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.retry_after = retry_after  # seconds
