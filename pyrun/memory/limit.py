"""How large the memory may get: `limit` in the table [memory] of llama-run.toml."""

from __future__ import annotations

import re
from pathlib import Path

from pyrun.errors import UserError
from pyrun.memory.store import MAX_BYTES
from pyrun.settings import read_table, take

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
LEAST = 10**6


def memory_limit(settings: Path) -> int:
    """In bytes; 10 GB where nothing is said."""
    where = f"{settings}: [memory]"
    text = take(read_table(settings, "memory"), "limit", str, where)
    if text is None:
        return MAX_BYTES
    found = re.fullmatch(r"(\d{1,12}) ?([KMGT]?)B?", text.strip().upper())
    limit = int(found[1]) * UNITS[found[2]] if found else 0
    if limit < LEAST:
        raise UserError(f"{where}: {text!r} is no limit of at least 1 MB", 'write it as limit = "20G"')
    return limit
