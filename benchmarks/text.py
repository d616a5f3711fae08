"""Text of a given length that is the same on every machine, and never repeats itself for long."""

from __future__ import annotations

import random

VOCABULARY = (
    "the server keeps state of every prompt it has seen and restores what a new request shares with it while "
    "other slots go on decoding read write file path error line test build result value table index page anchor "
    "disk memory token model layer cache turn user system tool answer question change check report begin end"
)


def words(count: int, seed: object) -> str:
    """About 1.1 tokens per word for common tokenizers."""
    rng = random.Random(str(seed))
    return " ".join(rng.choices(VOCABULARY.split(), k=count))
