"""Makes few numbers of many: medians, spreads, percentiles. It is pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, TypedDict


class Stat(TypedDict):
    n: int
    median: float
    min: float
    max: float
    spread: float  # how far the extremes are apart, as a part of the median


def summarise(values: Sequence[float]) -> Stat:
    median = statistics.median(values)
    low, high = min(values), max(values)
    return {
        "n": len(values),
        "median": median,
        "min": low,
        "max": high,
        "spread": (high - low) / median if median else 0.0,
    }


def percentile(values: Sequence[float], percent: float) -> float:
    """Where it lies between two values, it is the point on the line between them."""
    ordered = sorted(values)
    at = (len(ordered) - 1) * percent / 100
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)


def percentiles(values: Sequence[float], percents: Sequence[int] = (50, 90, 95, 99)) -> dict[str, float]:
    return {f"p{percent}": percentile(values, percent) for percent in percents}


def common_prefix(a: Sequence[Any], b: Sequence[Any]) -> int:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
