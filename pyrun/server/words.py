"""Finds flags behind `--` as llama-server itself finds them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

NUMBER = re.compile(r"-\d")  # a value may be below zero; everything else that begins so is a flag
SECRETS = ("--api-key", "--hf-token", "-hft")


def has_flag(words: Sequence[str], *flags: str) -> bool:
    return any(spelled(word) in flags for word in words)


def value_of(words: Sequence[str], *flags: str) -> str | None:
    """The last one counts, as for the server. `--flag=value` is none, because the server refuses that form."""
    found = [value for word, value in itertools.pairwise(words) if spelled(word) in flags]
    return found[-1] if found else None


def spelled(word: str) -> str:
    """llama-server takes --cache_ssd for --cache-ssd."""
    return word.replace("_", "-") if word.startswith("--") else word


def grouped(words: Sequence[str]) -> list[tuple[str, ...]]:
    """Flags with their values."""
    starts = [index for index, word in enumerate(words) if index == 0 or is_flag(word)]
    return [tuple(words[start:end]) for start, end in itertools.pairwise([*starts, len(words)])]


def is_flag(word: str) -> bool:
    return word.startswith("-") and not NUMBER.match(word)


def without_secrets(words: Sequence[str]) -> list[str]:
    """A log gets these: what follows a flag that takes a secret is left out."""
    before = ["", *words[:-1]]
    return ["***" if spelled(flag) in SECRETS else word for flag, word in zip(before, words, strict=True)]
