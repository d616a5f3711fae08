"""Holds two runs side by side: what became faster or slower, and whether that is more than noise. It only reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.results import read_models, verdict
from benchmarks.stats import Stat
from benchmarks.tables import Table, seconds
from pyrun import console

LEAST = 0.05  # a smaller difference is never worth a word


@dataclass(frozen=True)
class Figure:
    median: float
    low: float
    high: float
    unit: str = "ms"

    def __str__(self) -> str:
        if self.unit == "ms":
            return seconds(self.median)
        return console.size(self.median) if self.unit == "B" else f"{self.median:.2f}"


def figures(summary: dict[str, Any]) -> Iterator[tuple[str, Figure]]:
    """Gives everything in a model's results that can be compared. Less is better, for all of them."""
    scenarios = summary["scenarios"]
    for case in scenarios.get("restart", {}).get("cases", []):
        for name, peer in case["peers"].items():
            for phase, stat in peer.get("ttft_ms", {}).items():
                yield f"restart, {case['size']}, {name}: {phase}", _of_stat(stat)
    for name, peer in scenarios.get("agent", {}).get("peers", {}).items():
        if "ttft_ms_sum" in peer:
            yield f"agent, {name}: TTFT of all turns", _alone(peer["ttft_ms_sum"])
        if "total_ms_sum" in peer:
            yield f"agent, {name}: all turns to their last byte", _alone(peer["total_ms_sum"])
        if "evaluated_per_new" in peer:
            yield f"agent, {name}: evaluated per new token", _alone(peer["evaluated_per_new"], "")
    for name, peer in scenarios.get("chat", {}).get("peers", {}).items():
        for turn in peer.get("by_turn", []):
            yield f"chat, {name}: turn {turn['turn']}", _of_stat(turn["ttft_ms"])
    for name, peer in scenarios.get("fleet", {}).get("peers", {}).items():
        for which, stat in peer.get("ttft_ms", {}).items():
            yield f"fleet, {name}: {which.replace('_', ' ')}", _of_stat(stat)
        for what in ("written_bytes", "disk_bytes"):
            if what in peer:
                yield f"fleet, {name}: {what.replace('_', ' ')}", _alone(peer[what], "B")
    for name, peer in scenarios.get("load", {}).get("peers", {}).items():
        for percent, value in peer.get("ttft_ms", {}).items():
            yield f"load, {name}: TTFT {percent}", _alone(value)
    for scenario in ("swarm", "herd"):
        for name, peer in scenarios.get(scenario, {}).get("peers", {}).items():
            if "seconds" in peer:
                yield f"{scenario}, {name}: until all are answered", _of_stat(peer["seconds"], "s")
                yield f"{scenario}, {name}: p95 of a request", _of_stat(peer["p95_ms"])
            if "evaluated_per_new" in peer:
                yield f"{scenario}, {name}: evaluated per new token", _of_stat(peer["evaluated_per_new"], "")


def _of_stat(stat: Stat, unit: str = "ms") -> Figure:
    return Figure(stat["median"], stat["min"], stat["max"], unit)


def _alone(value: float, unit: str = "ms") -> Figure:
    return Figure(value, value, value, unit)


def judge(a: Figure, b: Figure) -> str:
    """Where the two ranges overlap, a difference may be noise."""
    if a.median == 0 or abs(b.median / a.median - 1) < LEAST:
        return "same"
    if a.low <= b.high and b.low <= a.high:
        return "within the spread"
    return "better" if b.median < a.median else "worse"


def compare(a: Path, b: Path) -> Table:
    left = {key: figure for summary in read_models(a) for key, figure in _keyed(summary)}
    right = {key: figure for summary in read_models(b) for key, figure in _keyed(summary)}
    rows: list[tuple[str, ...]] = []
    for key in [*left, *(key for key in right if key not in left)]:
        old, new = left.get(key), right.get(key)
        ratio = f"{new.median / old.median:.2f}" if old and new and old.median else ""
        told = judge(old, new) if old and new else "only in one"
        rows.append((*key, str(old or ""), str(new or ""), ratio, told))
    return Table(f"{a.name} and {b.name}", ("model", "what", a.name, b.name, "ratio", "judged"), rows, words=2)


def notes(a: Path, b: Path) -> list[str]:
    """Says why two runs may not be what one takes them for."""
    runs = [(path.name, read_models(path)) for path in (a, b)]
    bad = [f"{name}: {told}" for name, summaries in runs for told in _not_valid(summaries)]
    return [*_other_machines(runs), *_other_flags(runs[0][1], runs[1][1]), *bad]


def _other_machines(runs: list[tuple[str, list[dict[str, Any]]]]) -> list[str]:
    told = [(name, "; ".join(sorted({_machine(summary) for summary in summaries}))) for name, summaries in runs]
    if told[0][1] == told[1][1]:
        return []
    return ["on different machines: " + " and ".join(f"{name} on {machine}" for name, machine in told)]


def _other_flags(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> list[str]:
    left, right = (
        {(_name(summary), scenario): flags for summary in each for scenario, flags in summary["flags"].items()}
        for each in (a, b)
    )
    both = [key for key in left if key in right and left[key] != right[key]]
    return [f"{', '.join(key)}: with different flags, `{left[key]}` and `{right[key]}`" for key in both]


def _not_valid(summaries: list[dict[str, Any]]) -> list[str]:
    results = [(_name(summary), result) for summary in summaries for result in summary["scenarios"].values()]
    return [
        f"{name}, {result['scenario']}: {verdict(result)}" for name, result in results if verdict(result) != "valid"
    ]


def _machine(summary: dict[str, Any]) -> str:
    machine = summary["machine"]
    gpus = ", ".join(gpu["name"] for gpu in machine["gpus"])
    return f"{machine['cpu']}, {machine['cores']} cores{', ' + gpus if gpus else ''}"


def _name(summary: dict[str, Any]) -> str:
    return f"{summary['model']['name']} ({summary['backend']})"


def _keyed(summary: dict[str, Any]) -> Iterator[tuple[tuple[str, str], Figure]]:
    for what, figure in figures(summary):
        yield (_name(summary), what), figure
