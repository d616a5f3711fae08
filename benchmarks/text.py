"""Writes text of a given length that is the same on every machine, and never repeats itself for long."""

from __future__ import annotations

import json
import random

VOCABULARY = (
    "the server keeps state of every prompt it has seen and restores what a new request shares with it while "
    "other slots go on decoding read write file path error line test build result value table index page anchor "
    "disk memory token model layer cache turn user system tool answer question change check report begin end"
)


def words(count: int, seed: object) -> str:
    """Common tokenizers make about 1.1 tokens of a word."""
    rng = random.Random(str(seed))
    return " ".join(rng.choices(VOCABULARY.split(), k=count))


def tool_schemas(count: int, seed: object) -> str:
    """Writes about `count` words of what agents send before anything else: tools and their parameters, as JSON."""
    rng = random.Random(str(seed))
    lines: list[str] = []
    written = 0
    while written < count:
        names = rng.sample(VOCABULARY.split(), 3)
        about = words(rng.randint(12, 40), rng.random())
        tool = {
            "name": "_".join(names[:2]),
            "description": about,
            "parameters": {"type": "object", "properties": {names[2]: {"type": "string"}}, "required": [names[2]]},
        }
        lines.append(json.dumps(tool))
        written += len(about.split()) + 20  # brackets, quotes and keys are words, too
    return "\n".join(lines)
