"""What a person or a model types, as a query of FTS5. Any text will do; nothing in it is an operator."""

from __future__ import annotations

import re

MAX_WORDS = 32  # of a query; what follows them says little more, and costs time


def clean(text: str) -> str:
    """Text that SQLite takes: without NUL, and without halves of characters that UTF-8 cannot write."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", " ")


def words(text: str) -> list[str]:
    """The distinct words of a text, in order."""
    found = re.findall(r"[^\W_]+", clean(text))
    return list(dict.fromkeys(word.lower() for word in found))[:MAX_WORDS]


def match_all(chosen: list[str]) -> str:
    return " AND ".join(f'"{word}"' for word in chosen)


def match_any(chosen: list[str]) -> str:
    return " OR ".join(f'"{word}"' for word in chosen)
