"""What a tool is: a name, a schema, what it may do, and the function that does it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

MAX_RESULT_CHARACTERS = 100_000
MAX_ARGUMENT_CHARACTERS = 4_000_000


class ToolError(Exception):
    """Told to the model: what went wrong, and what to do about it."""


@dataclass(frozen=True)
class Call:
    """One call: its arguments, which fit the schema, and whether somebody wants it to end."""

    arguments: dict[str, Any]
    stopped: threading.Event = field(default_factory=threading.Event)

    def text(self, name: str, default: str = "") -> str:
        return str(self.arguments.get(name, default))

    def number(self, name: str, default: int) -> int:
        return int(self.arguments.get(name, default))

    def flag(self, name: str, default: bool = False) -> bool:
        return bool(self.arguments.get(name, default))


@dataclass(frozen=True)
class Tool:
    name: str
    description: str
    parameters: dict[str, Any]  # property -> schema
    run: Callable[[Call], str]
    required: tuple[str, ...] = ()
    changes: bool = False  # something outside: a person is asked first, or a rule allows it
    subject: str = ""  # the argument that a rule's pattern is compared with, and that a person is shown
    settle: Callable[[str], str] = str  # what that argument stands for; the call is made with it

    def settled(self, call: Call) -> tuple[str, Call]:
        """What the call is about, and the call that is about just that: what was asked for is what is done."""
        if not self.subject:
            return "", call
        subject = self.settle(call.text(self.subject))
        return subject, Call({**call.arguments, self.subject: subject}, call.stopped)

    @property
    def schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": self.parameters,
            "required": list(self.required),
            "additionalProperties": False,
        }


def text(description: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", "description": description, "maxLength": MAX_ARGUMENT_CHARACTERS, **more}


def number(description: str, low: int, high: int) -> dict[str, Any]:
    return {"type": "integer", "description": description, "minimum": low, "maximum": high}


def flag(description: str) -> dict[str, Any]:
    return {"type": "boolean", "description": description}


def shortened(result: str, limit: int = MAX_RESULT_CHARACTERS) -> str:
    """No more than a model should have to read."""
    if len(result) <= limit:
        return result
    return f"{result[:limit]}\n[cut: {len(result) - limit:,} more characters]"
