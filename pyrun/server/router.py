"""Several models behind one address: upstream's router, with our profile for each model as its preset. It is pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyrun.server.stop import LONGEST_SECONDS

NUMBER = re.compile(r"-\d")  # a value may be below zero; everything else that begins so is a flag
# By these the router knows who fits beside whom.
NEED_FLAG, MEMORY_FLAG, MEMORY_VARIABLE = "--model-need", "--models-memory", "LLAMA_ARG_MODELS_MEMORY"
COMMENT = re.compile(r"[;#\n\r\]]")  # what the file cannot hold in a value or a name


@dataclass(frozen=True)
class Preset:
    name: str
    model: Path
    words: tuple[str, ...]  # llama-server's, for this model

    @property
    def is_writable(self) -> bool:
        return not any(COMMENT.search(text) for text in (self.name, str(self.model), *self.words))


@dataclass(frozen=True)
class Room:
    """What is loaded together."""

    at_most: int
    memory: int | None = None  # bytes for all of them; without it they are counted, since nobody knows what each takes


def presets_text(presets: Sequence[Preset]) -> str:
    """The file for --models-preset. A model that makes room is given the time to save its state."""
    lines = ["version = 1", "", "[*]", f"stop-timeout = {LONGEST_SECONDS:.0f}"]
    for preset in presets:
        lines += ["", f"[{preset.name}]", f"model = {preset.model}"]
        lines += [f"{flag.lstrip('-')} = {value}" for flag, value in _pairs(preset.words)]
    return "\n".join(lines) + "\n"


def _pairs(words: Sequence[str]) -> list[tuple[str, str]]:
    """A flag without a value is one that is true. The last one counts, as on a command line."""
    found: dict[str, str] = {}
    for index, word in enumerate(words):
        if _is_flag(word):
            following = words[index + 1 : index + 2]
            found[word] = following[0] if following and not _is_flag(following[0]) else "true"
    return list(found.items())


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not NUMBER.match(word)


def at_most(needs: Sequence[int], memory: int) -> int:
    """How many can ever be loaded together: the smallest of them. What is larger than the memory takes all of it."""
    total, count = 0, 0
    for need in sorted(needs):
        total += min(need, memory)
        if total > memory:
            break
        count += 1
    return max(1, count)
