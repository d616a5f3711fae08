"""Decides whether a crashed server is started again, and when. It is pure: crash times in, decision out.

One that crashes while it loads may take longer for that than the crashes of a minute are counted: the system ends what
fills its memory, and would do so again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WINDOW_SECONDS = 60.0
MAX_CRASHES = 5
MAX_FAILED_STARTS = 3  # in a row
FIRST_DELAY = 0.5
MAX_DELAY = 8.0


@dataclass(frozen=True)
class Restart:
    delay: float


@dataclass(frozen=True)
class GiveUp:
    why: str


def after_crash(crashes: Sequence[float], now: float, failed_starts: int = 0) -> Restart | GiveUp:
    """`crashes` are the times of all crashes so far, the newest included. The delay doubles with each recent one."""
    if failed_starts >= MAX_FAILED_STARTS:
        return GiveUp(f"crashed {failed_starts} times before it was ready")
    recent = [t for t in crashes if now - t < WINDOW_SECONDS]
    if len(recent) >= MAX_CRASHES:
        return GiveUp(f"crashed {len(recent)} times in a minute")
    return Restart(min(FIRST_DELAY * 2 ** (len(recent) - 1), MAX_DELAY))
