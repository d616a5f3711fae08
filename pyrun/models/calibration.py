"""Holds what a profile expects a model to take against what the server really took, start after start."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyrun.home import Home
from pyrun.models.fit import Need

KEPT = 64  # starts, of all models


@dataclass(frozen=True)
class Start:
    """One start of a model: bytes of weights, context and compute buffers."""

    model: str
    backend: str
    at: float
    expected: tuple[int, int, int]
    taken: tuple[int, int, int]

    @property
    def factor(self) -> float:
        return sum(self.taken) / max(1, sum(self.expected))


def starts_of(home: Home) -> Path:
    return home.logs / "memory.json"


def taken_of(told: Mapping[str, Any]) -> tuple[int, int, int] | None:
    """From what GET /cache says; None where the server does not say it."""
    memory = told.get("memory")
    if not isinstance(memory, Mapping):
        return None
    return int(memory["model"]), int(memory["context"]), int(memory["compute"])


def read_starts(path: Path) -> list[Start]:
    """Oldest first. What cannot be read is as good as never written."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        return [
            Start(e["model"], e["backend"], float(e["at"]), tuple(e["expected"]), tuple(e["taken"])) for e in entries
        ]
    except (OSError, ValueError, TypeError, KeyError):
        return []


def remember_start(path: Path, model: str, backend: str, expected: Need, taken: tuple[int, int, int]) -> Start:
    made = Start(model, backend, time.time(), (expected.weights, expected.cache, expected.compute), taken)
    starts = [*read_starts(path), made][-KEPT:]
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps([asdict(start) for start in starts]), encoding="utf-8")
        part.replace(path)
    return made


def describe_starts(starts: list[Start]) -> str | None:
    """One line: how far off earlier starts were; None where there were none."""
    if not starts:
        return None
    factors = sorted(start.factor for start in starts)
    last = starts[-1]
    times = f"{len(starts)} start{'' if len(starts) == 1 else 's'}"
    return (
        f"{times} took {factors[len(factors) // 2]:.2f} of what was expected; the last one "
        f"{_gib(last.taken)} GiB where {_gib(last.expected)} were"
    )


def _gib(parts: tuple[int, int, int]) -> str:
    return f"{sum(parts) / (1 << 30):.2f}"
