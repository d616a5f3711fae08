"""Asks several servers in turn, so that the machine's moods meet each of them, and tells all rounds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.peers import Server
from pyrun import console


def in_turn(peers: Sequence[Server], n_round: int) -> list[Server]:
    """Everybody is the first one as often as the others."""
    first = n_round % len(peers)
    return [*peers[first:], *peers[:first]]


def tell(what: str, peers: Sequence[Server], measured: dict[str, list[float]], digits: int = 1) -> None:
    """All rounds, and how they compare with those of the first peer."""
    base = measured[peers[0].name]
    for peer in peers:
        rounds = measured[peer.name]
        ratios = [a / b for a, b in zip(rounds, base, strict=True)]
        line = f"{what}, {peer.name}: " + " ".join(f"{value:.{digits}f}" for value in rounds)
        if peer is not peers[0]:
            of_medians = statistics.median(rounds) / statistics.median(base)
            line += " | ratios " + " ".join(f"{ratio:.3f}" for ratio in ratios)
            line += f" | median {statistics.median(ratios):.3f}, of medians {of_medians:.3f}"
        console.out.print(line, soft_wrap=True)
