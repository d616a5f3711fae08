"""Decides whether a crashed server is started again, and when. It is pure: crash times in, decision out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WINDOW_SECONDS = 60.0
MAX_CRASHES = 5
FIRST_DELAY = 0.5
MAX_DELAY = 8.0


@dataclass(frozen=True)
class Restart:
    delay: float


@dataclass(frozen=True)
class GiveUp:
    crashes: int


def after_crash(crashes: Sequence[float], now: float) -> Restart | GiveUp:
    """`crashes` are the times of all crashes so far, the newest included. The delay doubles with each recent one."""
    recent = [t for t in crashes if now - t < WINDOW_SECONDS]
    if len(recent) >= MAX_CRASHES:
        return GiveUp(len(recent))
    return Restart(min(FIRST_DELAY * 2 ** (len(recent) - 1), MAX_DELAY))
