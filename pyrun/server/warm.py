"""Asks a running server to prepare prompts, and says how far it is meanwhile."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyrun.errors import UserError
from pyrun.server.ask import ask

LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class Warmed:
    """What the server did for one prompt."""

    told: dict[str, Any]

    @property
    def tokens(self) -> int:
        return int(self.told["tokens"])

    @property
    def evaluated(self) -> int:
        return int(self.told["evaluated"])

    @property
    def restored(self) -> int:
        return int(self.told["restored"])

    @property
    def on_disk(self) -> bool:
        return bool(self.told["on_disk"])

    @property
    def bytes(self) -> int:
        return int(self.told["bytes"])

    @property
    def ms(self) -> float:
        return float(self.told["ms"])


def read_bodies(text: str, source: str) -> list[dict[str, Any]]:
    """One object per line, or a single one over several lines."""
    try:
        whole = json.loads(text)
        bodies = whole if isinstance(whole, list) else [whole]
    except ValueError:
        bodies = []
        for number, line in enumerate(text.split("\n"), 1):
            if not line.strip():
                continue
            try:
                bodies.append(json.loads(line))
            except ValueError as error:
                raise UserError(
                    f"{source}, line {number}: {error}", "each line is the body of a chat request"
                ) from error
    if not bodies or not all(isinstance(body, dict) for body in bodies):
        raise UserError(f"{source} has no bodies", 'each line is a JSON object, such as {"messages": [...]}')
    return bodies


def system_body(system: str, tools: str | None) -> dict[str, Any]:
    body: dict[str, Any] = {"messages": [{"role": "system", "content": system}]}
    if tools is not None:
        try:
            body["tools"] = json.loads(tools)
        except ValueError as error:
            raise UserError(
                f"the tools are no JSON: {error}", "give an array, as in the body of a chat request"
            ) from error
    return body


def warm(
    url: str, key: str | None, body: dict[str, Any], show: Callable[[int, int], None], model: str | None = None
) -> Warmed:
    """Returns when the server is done. Meanwhile `show` is told how many tokens of how many are evaluated. `model` is
    as for `ask`."""
    done = threading.Event()

    def look() -> None:
        while not done.wait(LOOK_SECONDS):
            try:
                told = ask(url, "/cache", key, model=model).get("warm", {})
                if told.get("tokens"):
                    show(int(told["evaluated"]), int(told["tokens"]))
            except UserError:
                return  # whoever waits for the answer hears of it

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        return Warmed(ask(url, "/cache/warm", key, model=model, post=body, patience=None))
    finally:
        done.set()
        watcher.join()
