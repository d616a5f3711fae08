"""Draws results, as PNG and SVG. Without matplotlib there are no pictures, and that is said."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.bench import OURS
from benchmarks.records import AgentResult, Case, ChatResult, CrowdResult, FleetResult, LoadResult, RestartResult

COLOURS = ("#1f77b4", "#d95f02", "#7f7f7f", "#2ca02c", "#9467bd", "#8c564b")
SIZE = (7.2, 4.2)
# A phase has a name, an opacity and a hatching; colours tell the servers apart.
LOOKS = {
    "cold": ("cold", 0.4, ""),
    "warm": ("after a restart", 1.0, ""),
    "ahead": ("after a restart, read ahead", 0.85, ".."),
    "ram": ("from RAM", 0.7, "//"),
}


HOW_TO_GET = "`./llama-run --version` installs matplotlib in a clone, `pip install 'llama-run[plot]'` elsewhere"


def can_draw() -> bool:
    return find_spec("matplotlib") is not None


def draw_model(summary: dict[str, Any], folder: Path) -> list[str]:
    """Draws all plots that a model's results have data for, and gives their names without the endings."""
    if not can_draw():
        return []
    drawn: list[str] = []
    title = f"{summary['model']['name']}, {summary['backend']}"
    for name, result in summary["scenarios"].items():
        for plot, draw in PLOTS.get(name, {}).items():
            if _has_data(result):
                with _figure(folder / f"{name}-{plot}") as axes:
                    draw(axes, result)
                    axes.set_title(title, fontsize=10, loc="left")
                drawn.append(f"{name}-{plot}")
    return drawn


def draw_run(summaries: list[dict[str, Any]], folder: Path) -> list[str]:
    """Draws cold against warm starts, over all models and backends."""
    cases = [
        (f"{summary['model']['name']}\n{summary['backend']}, {case['size']}", case["peers"][OURS]["ttft_ms"])
        for summary in summaries
        for case in summary["scenarios"].get("restart", {}).get("cases", [])
        if case["peers"].get(OURS, {}).get("ttft_ms", {}).get("warm")
    ]
    if not cases or not can_draw():
        return []
    with _figure(folder / "restart") as axes:
        series = [
            Bars("cold", [times["cold"]["median"] for _, times in cases], COLOURS[0], 0.4),
            Bars("after a restart", [times["warm"]["median"] for _, times in cases], COLOURS[0]),
        ]
        _bars(axes, [label for label, _ in cases], series)
    return ["restart"]


@contextmanager
def _figure(path: Path) -> Iterator[Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    # Without a date and with fixed ids, the same data gives the same file.
    settings: Any = {"svg.hashsalt": "llama-run", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    with pyplot.rc_context(settings):
        figure, axes = pyplot.subplots(figsize=SIZE, layout="constrained")
        yield axes
        handles, labels = axes.get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, frameon=False, loc="outside lower center", ncols=3, fontsize=8)
        figure.savefig(path.with_suffix(".png"), dpi=150)
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
        pyplot.close(figure)


def _has_data(result: dict[str, Any]) -> bool:
    if result["scenario"] == "restart":
        return any(p.get("ttft_ms", {}).get("warm") for case in result.get("cases", []) for p in case["peers"].values())
    return any(
        peer.get("turns") or peer.get("ttft_ms") or peer.get("seconds") for peer in result.get("peers", {}).values()
    )


def _colours(names: Iterable[str]) -> dict[str, str]:
    return {name: COLOURS[at % len(COLOURS)] for at, name in enumerate(names)}


@dataclass(frozen=True)
class Bars:
    label: str
    values: list[float | None]
    colour: str
    opacity: float = 1.0
    hatch: str = ""


def _bars(axes: Any, labels: list[str], series: list[Bars]) -> None:
    """Draws groups of bars on a log scale, each with its value."""
    from benchmarks.tables import seconds

    width = 0.8 / len(series)
    for at, bars in enumerate(series):
        places = [i + (at - (len(series) - 1) / 2) * width for i in range(len(labels))]
        there = [(place, value) for place, value in zip(places, bars.values, strict=True) if value]
        axes.bar(
            [place for place, _ in there],
            [value for _, value in there],
            width * 0.95,
            label=bars.label,
            color=bars.colour,
            alpha=bars.opacity,
            hatch=bars.hatch,
        )
        for place, value in there:
            turned = 90 if width * len(labels) < 0.5 or width < 0.2 else 0
            place_of_text = (place, value * 1.05)
            axes.annotate(seconds(value), place_of_text, ha="center", va="bottom", fontsize=7, rotation=turned)
    axes.set_yscale("log")
    axes.margins(y=0.2)
    axes.set_xticks(range(len(labels)), labels)
    axes.set_ylabel("time to the first token, ms")


def _cold_warm(axes: Any, result: RestartResult) -> None:
    cases = result["cases"]
    names = list(dict.fromkeys(name for case in cases for name in case["peers"]))
    series: list[Bars] = []
    for at, name in enumerate(names):
        for phase, (label, opacity, hatch) in LOOKS.items():
            values = [_median(case, name, phase) for case in cases]
            if any(values) and (phase != "ram" or name == OURS):
                series.append(Bars(f"{name}, {label}", values, COLOURS[at % len(COLOURS)], opacity, hatch))
    sizes = [_tokens(case) for case in cases]
    _bars(axes, [f"{case['size']}\n{n:,} tokens" for case, n in zip(cases, sizes, strict=True)], series)


def _median(case: Case, peer: str, phase: str) -> float | None:
    entry = case["peers"].get(peer)
    stat = entry.get("ttft_ms", {}).get(phase) if entry else None
    return stat["median"] if stat else None


def _tokens(case: Case) -> int:
    rows = [row for peer in case["peers"].values() for row in peer["rounds"] if "cold" in row]
    return int(rows[0]["cold"]["n_tokens"]) if rows else 0


def _agent_turns(axes: Any, result: AgentResult) -> None:
    ours = result["peers"][OURS]["turns"] if OURS in result["peers"] else []
    cold = [turn["cold_ms_estimated"] for turn in ours if "cold_ms_estimated" in turn]
    _by_turn(axes, {name: [turn["ttft_ms"] for turn in peer["turns"]] for name, peer in result["peers"].items()}, cold)


def _fleet_turns(axes: Any, result: FleetResult) -> None:
    _by_turn(axes, {name: [turn["ttft_ms"] for turn in peer["turns"]] for name, peer in result["peers"].items()})


def _by_turn(axes: Any, times: dict[str, list[float]], cold: Sequence[float] = ()) -> None:
    colours = _colours(times)
    for name, values in times.items():
        axes.plot(range(1, len(values) + 1), values, marker="o", markersize=4, label=name, color=colours[name])
    if cold:
        axes.plot(range(1, len(cold) + 1), cold, linestyle=":", color="#444444", label="from nothing (estimated)")
    axes.set_yscale("log")
    axes.set_xlabel("turn")
    axes.set_ylabel("time to the first token, ms")


def _by_chat_turn(axes: Any, result: ChatResult) -> None:
    colours = _colours(result["peers"])
    for name, peer in result["peers"].items():
        turns = [turn["turn"] for turn in peer["by_turn"]]
        medians = [turn["ttft_ms"]["median"] for turn in peer["by_turn"]]
        axes.plot(turns, medians, marker="o", markersize=4, label=f"{name}, median", color=colours[name])
        axes.plot(turns, [turn["p90_ms"] for turn in peer["by_turn"]], linestyle="--", label="p90", color=colours[name])
    axes.set_yscale("log")
    axes.set_xlabel("turn of a conversation")
    axes.set_ylabel("time to the first token, ms")


def _written(axes: Any, result: FleetResult) -> None:
    """The bytes are summed up, because their sum is what wears a disk."""
    colours = _colours(result["peers"])
    for name, peer in result["peers"].items():
        written = [turn.get("written_bytes") for turn in peer["turns"]]
        if any(written):
            label = f"{name}, written"
            axes.plot(range(1, len(written) + 1), _sums(written), label=label, color=colours[name])
        if name == OURS:
            whole = _sums([turn["whole_bytes"] for turn in peer["turns"]])
            axes.plot(range(1, len(whole) + 1), whole, linestyle=":", color="#444444", label="whole states (computed)")
    axes.set_xlabel("turn, of all conversations")
    axes.set_ylabel("MB written so far")
    axes.set_ylim(bottom=0)


def _sums(values: Sequence[float | None]) -> list[float]:
    total, out = 0.0, []
    for value in values:
        total += value or 0.0
        out.append(total / 1e6)
    return out


def _percentiles(axes: Any, result: LoadResult) -> None:
    colours = _colours(result["peers"])
    for name, peer in result["peers"].items():
        times = sorted(answer["ttft_ms"] for answer in peer["answers"])
        if times:
            percent = [100 * (at + 1) / len(times) for at in range(len(times))]
            axes.step(percent, times, where="post", label=name, color=colours[name])
    axes.set_yscale("log")
    axes.set_xlabel("percent of answers")
    axes.set_ylabel("time to the first token, at most, ms")


def _until_answered(axes: Any, result: CrowdResult) -> None:
    """Every round is drawn: medians hide what a machine does."""
    colours = _colours(result["peers"])
    for name, peer in result["peers"].items():
        took = [each["seconds"] for each in peer["rounds"]]
        axes.plot(range(1, len(took) + 1), took, marker="o", markersize=4, label=name, color=colours[name])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("round")
    axes.set_ylabel("seconds until all are answered")


PLOTS: dict[str, dict[str, Any]] = {
    "restart": {"cold-warm": _cold_warm},
    "agent": {"turns": _agent_turns},
    "chat": {"turns": _by_chat_turn},
    "fleet": {"turns": _fleet_turns, "written": _written},
    "load": {"percentiles": _percentiles},
    "swarm": {"rounds": _until_answered},
    "herd": {"rounds": _until_answered},
}
