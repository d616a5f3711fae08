"""Counts what the routers of a mixture chose, and how evenly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

BUSIEST = 0.1  # so large a part of a layer's experts are its busiest, and at least one
MOST = 0.9  # so large a part of a layer's choices is most of them


@dataclass(frozen=True)
class LayerCounts:
    """How often a layer's router chose each expert; `counts` is in the order of the experts' numbers."""

    layer: int
    tokens: int
    counts: tuple[int, ...]

    @property
    def total(self) -> int:
        return sum(self.counts)

    def share(self, n: int) -> float:
        """So large a part of the choices falls on the n busiest experts."""
        return sum(sorted(self.counts, reverse=True)[:n]) / self.total if self.total else 0.0

    @property
    def busiest_share(self) -> float:
        """The busiest tenth of the experts has this share, which is a tenth when all work alike."""
        return self.share(max(1, round(len(self.counts) * BUSIEST)))

    @property
    def balance(self) -> float:
        """It is the choices' entropy, relative to the largest: 1 when all work alike, 0 when one does everything."""
        parts = [count / self.total for count in self.counts if count]
        if len(self.counts) < 2 or not parts:
            return 0.0
        return -sum(part * math.log(part) for part in parts) / math.log(len(self.counts))

    @property
    def needed_for_most(self) -> int:
        """So many experts take nine tenths of the choices: the others could leave fast memory first."""
        return next((n for n in range(1, len(self.counts) + 1) if self.share(n) >= MOST), len(self.counts))

    @property
    def unused(self) -> int:
        return self.counts.count(0)

    def busiest(self, n: int) -> list[tuple[int, float]]:
        """Gives the n busiest experts with their shares; where two are alike, the lower number comes first."""
        order = sorted(range(len(self.counts)), key=lambda expert: (-self.counts[expert], expert))
        return [(expert, self.counts[expert] / self.total) for expert in order[:n] if self.counts[expert]]


@dataclass(frozen=True)
class ExpertCounts:
    n_expert: int
    n_expert_used: int
    total_tokens: int
    tracking: bool
    layers: Sequence[LayerCounts]


def parse_counts(told: dict[str, Any]) -> ExpertCounts:
    """Reads the answer of GET /expert-stats."""
    layers = []
    for layer in told["layers"]:
        counts = [0] * int(told["n_expert"])
        for activation in layer["activations"]:
            counts[activation["expert"]] = activation["count"]
        layers.append(LayerCounts(layer["layer"], layer["tokens"], tuple(counts)))
    return ExpertCounts(told["n_expert"], told["n_expert_used"], told["total_tokens"], told["tracking_enabled"], layers)
