"""Several models behind one address: upstream's router, with our profile for each model as its preset. It is pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyrun.server.stop import LONGEST_SECONDS
from pyrun.server.words import grouped, is_flag, spelled

# By these the router knows who fits beside whom.
NEED_FLAG, MEMORY_FLAG, MEMORY_VARIABLE = "--model-need", "--models-memory", "LLAMA_ARG_MODELS_MEMORY"
COMMENT = re.compile(r"[;#\n\r\]]")  # what the file cannot hold in a value or a name
# These are about the address that clients know, which is the router's; models have addresses of their own behind it.
OF_ROUTER = re.compile(
    r"--(no-)?(agent|api|cors|log|mcp|models|ssl|tools|ui|webui)(-|$)|-(no-)?ag$|-to$"
    r"|--(allowed-host|host|path|port|reuse-port|threads-http|timeout)$"
)


@dataclass(frozen=True)
class Preset:
    name: str
    model: Path
    words: tuple[str, ...]  # llama-server's, for this model
    cache: str | None = None  # the folder that its state is kept in, whoever names it

    @property
    def is_writable(self) -> bool:
        return is_writable((self.name, str(self.model), *self.words))


@dataclass(frozen=True)
class Room:
    """What is loaded together."""

    at_most: int
    memory: int | None = None  # bytes for all of them; without it they are counted, since nobody knows what each takes


def is_writable(texts: Sequence[str]) -> bool:
    return not any(COMMENT.search(text) for text in texts)


def is_of_router(word: str) -> bool:
    return OF_ROUTER.match(spelled(word)) is not None


def presets_text(presets: Sequence[Preset], of_all: Sequence[str] = ()) -> str:
    """The file for --models-preset. `of_all` are words for all models, where their own say nothing else. A model that
    makes room is given the time to save its state."""
    lines = ["version = 1", "", "[*]", f"stop-timeout = {LONGEST_SECONDS:.0f}", *_lines(of_all)]
    for preset in presets:
        lines += ["", f"[{preset.name}]", f"model = {preset.model}", *_lines(preset.words)]
    return "\n".join(lines) + "\n"


def _lines(words: Sequence[str]) -> list[str]:
    """A flag without a value is one that is true. The last one counts, as on a command line."""
    found = {spelled(group[0]): (*group[1:], "true")[0] for group in grouped(words) if is_flag(group[0])}
    return [f"{flag.lstrip('-')} = {value}" for flag, value in found.items()]


def at_most(needs: Sequence[int], memory: int) -> int:
    """How many can ever be loaded together: the smallest of them. What is larger than the memory takes all of it."""
    total, count = 0, 0
    for need in sorted(needs):
        total += min(need, memory)
        if total > memory:
            break
        count += 1
    return max(1, count)
