"""Makes tables of results: they become markdown in summary.md and rich tables on a terminal. It is pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.markup import escape
from rich.table import Table as RichTable

from benchmarks.bench import OURS
from benchmarks.records import (
    AgentPeer,
    AgentResult,
    AgentTurn,
    Case,
    ChatResult,
    CrowdResult,
    FleetBytes,
    FleetResult,
    Limits,
    LoadResult,
    MultipleOfPhase,
    RestartPeer,
    RestartResult,
    SpeedName,
)
from benchmarks.results import times_shorter, verdict
from benchmarks.stats import Stat
from pyrun import console

# A warm start is held against the fastest cold one of all servers with the same prompt; and against its limit, with the
# disk as fast as it was beside that restart, and as it was at the run's beginning.
SHORTER = "times shorter than the fastest cold"
LIMITS = ("x limit", "x limit at start")
SPEEDS: tuple[tuple[SpeedName, str, str], ...] = (
    ("copy_bytes_per_s", "copying from RAM into the backend", "B/s"),
    ("prefill_per_s", "evaluating a prompt", "tokens/s"),
    ("decode_per_s", "decoding an answer", "tokens/s"),
)
BYTES_OF_FLEET: tuple[FleetBytes, ...] = ("written_bytes", "whole_bytes", "disk_bytes", "whole_disk_bytes")


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    words: int = 1  # so many columns, from the left, hold words; the others hold numbers

    def markdown(self) -> str:
        marks = ["---" if at < self.words else "---:" for at in range(len(self.columns))]
        lines = [self.columns, marks, *self.rows]
        return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)

    def rich(self) -> RichTable:
        table = RichTable(title=escape(self.title), title_justify="left")
        for at, column in enumerate(self.columns):
            table.add_column(escape(column), justify="left" if at < self.words else "right", overflow="fold")
        for row in self.rows:
            table.add_row(*map(escape, row))
        return table


def seconds(milliseconds: float) -> str:
    """Shows three digits that count, whatever the size."""
    if milliseconds < 1000:
        return f"{milliseconds:.1f} ms" if milliseconds < 100 else f"{milliseconds:.0f} ms"
    return f"{milliseconds / 1000:.2f} s" if milliseconds < 100_000 else f"{milliseconds / 1000:.0f} s"


def of_result(result: Any) -> list[Table]:
    """The scenario that a result names says what it holds."""
    tables: dict[str, Callable[[Any], list[Table]]] = {
        "restart": _restart,
        "agent": _agent,
        "chat": _chat,
        "fleet": _fleet,
        "load": _load,
        "swarm": _crowd,
        "herd": _crowd,
    }
    return tables[result["scenario"]](result)


def _restart(result: RestartResult) -> list[Table]:
    columns = ("size", "server", "tokens", "cold", "warm", "spread", SHORTER, *LIMITS, "RAM", "x limit", "read ahead")
    rows: list[tuple[str, ...]] = []
    for case in result.get("cases", []):
        for name, peer in case["peers"].items():
            times = peer.get("ttft_ms", {})
            if not times:
                continue
            warm = times.get("warm")
            n_tokens = next(row["cold"]["n_tokens"] for row in peer["rounds"] if "cold" in row)
            rows.append(
                (
                    str(case["size"]),
                    name,
                    f"{n_tokens:,}",
                    _median(times, "cold"),
                    _median(times, "warm"),
                    f"{warm['spread']:.0%}" if warm else "",
                    _shorter(case, name, 1),
                    _multiple(peer, "warm_times_limit"),
                    _multiple(peer, "warm_times_run_limit"),
                    _median(times, "ram"),
                    _multiple(peer, "ram_times_limit"),
                    _median(times, "ahead"),
                )
            )
    return [Table("time to the first token, cold and after a restart", columns, rows, words=2)]


def _median(stats: dict[str, Stat], name: str) -> str:
    return seconds(stats[name]["median"]) if name in stats else ""


def _shorter(case: Case, name: str, digits: int) -> str:
    ratio = times_shorter(case, name)
    return f"{ratio:.{digits}f}" if ratio else ""


def _multiple(peer: RestartPeer, name: MultipleOfPhase) -> str:
    return f"{peer[name]:.2f}" if name in peer else ""


def _agent(result: AgentResult) -> list[Table]:
    peers = result.get("peers", {})
    others = [name for name in peers if name != OURS]
    beside = (column for name in others for column in (f"{name}: evaluated", f"{name}: TTFT", f"{name}: request"))
    columns = ("turn", "from", "tokens", "new", "reused", "evaluated", "TTFT", "request", "cold (estimated)", *beside)
    rows: list[tuple[str, ...]] = []
    ours: AgentPeer = peers.get(OURS, {"turns": []})
    for number, turn in enumerate(ours["turns"]):
        row = [
            f"{number + 1} {turn['what']}",
            turn["source"],
            f"{turn['n_tokens']:,}",
            f"{turn['new']:,}",
            f"{turn['reused']:,}",
            f"{turn['evaluated']:,}",
            seconds(turn["ttft_ms"]),
            _request(turn),
            seconds(turn.get("cold_ms_estimated", 0)),
        ]
        for name in others:
            turns = peers[name]["turns"]
            there = turns[number] if number < len(turns) else None
            times = [seconds(there["ttft_ms"]), _request(there)] if there else ["", ""]
            row += [f"{there['evaluated']:,}" if there else "", *times]
        rows.append(tuple(row))
    if "ttft_ms_sum" in ours:
        row = ["sum; evaluated per new token", "", "", "", "", _per_new(ours), *_sums(ours), ""]
        for name in others:
            row += [_per_new(peers[name]), *_sums(peers[name])]
        rows.append(tuple(row))
    return [Table("an agent's session of eleven turns", columns, rows, words=2)]


def _request(turn: AgentTurn) -> str:
    return seconds(turn["total_ms"]) if "total_ms" in turn else ""


def _sums(peer: AgentPeer) -> tuple[str, str]:
    ttft = seconds(peer["ttft_ms_sum"]) if "ttft_ms_sum" in peer else ""
    return ttft, seconds(peer["total_ms_sum"]) if "total_ms_sum" in peer else ""


def _per_new(peer: AgentPeer) -> str:
    return f"{peer['evaluated_per_new']:.2f}" if "evaluated_per_new" in peer else ""


def _chat(result: ChatResult) -> list[Table]:
    peers = result.get("peers", {})
    columns = ("turn", "tokens", *(c for name in peers for c in (f"{name}: evaluated", f"{name}: TTFT", "p90")))
    rows: list[tuple[str, ...]] = []
    longest = max((len(peer.get("by_turn", [])) for peer in peers.values()), default=0)
    for number in range(longest):
        row = [str(number + 1), ""]
        for peer in peers.values():
            by_turn = peer.get("by_turn", [])
            if number >= len(by_turn):
                row += ["", "", ""]
                continue
            turn = by_turn[number]
            row[1] = row[1] or f"{turn['n_tokens']:,.0f}"
            row += [f"{turn['evaluated']:,.0f}", seconds(turn["ttft_ms"]["median"]), seconds(turn["p90_ms"])]
        rows.append(tuple(row))
    return [Table("chats, by the number of the turn (medians)", columns, rows)]


def _fleet(result: FleetResult) -> list[Table]:
    whole = "as whole states"
    columns = ("server", "first", "others", "next turns", "per turn", "written", whole, "on disk", whole)
    rows: list[tuple[str, ...]] = []
    for name, peer in result.get("peers", {}).items():
        times = peer.get("ttft_ms", {})
        written = peer.get("written_bytes")
        rows.append(
            (
                name,
                *(_median(times, which) for which in ("first", "others", "next_turns")),
                console.size(written / len(peer["turns"])) if written else "",
                *(console.size(peer[what]) if peer.get(what) else "" for what in BYTES_OF_FLEET),
            )
        )
    settings = result["settings"]
    title = f"{settings.get('conversations', '?')} conversations with one system prompt: TTFT and bytes"
    return [Table(title, columns, rows)]


def _load(result: LoadResult) -> list[Table]:
    columns = ("server", "answers", "errors", "answers/s", "tokens/s", "TTFT p50", "p90", "p95", "p99")
    rows: list[tuple[str, ...]] = []
    for name, peer in result.get("peers", {}).items():
        times = peer.get("ttft_ms", {})
        rows.append(
            (
                name,
                str(len(peer["answers"])),
                str(len(peer["errors"])),
                f"{peer.get('answers_per_s', 0):.2f}",
                f"{peer.get('tokens_per_s', 0):.1f}",
                *(seconds(times[p]) if p in times else "" for p in ("p50", "p90", "p95", "p99")),
            )
        )
    return [Table(f"{result['settings'].get('clients', '?')} clients at once", columns, rows)]


def _crowd(result: CrowdResult) -> list[Table]:
    columns = (
        "server",
        "rounds",
        "until all are answered",
        "spread",
        "x ours",
        "p95 of a request",
        "evaluated per new",
        "first token, x alone",
        "errors",
    )
    peers = result.get("peers", {})
    ours = peers[OURS].get("seconds") if OURS in peers else None
    rows: list[tuple[str, ...]] = []
    for name, peer in peers.items():
        took = peer.get("seconds")
        per_new = peer.get("evaluated_per_new")
        later = peer.get("first_to_alone")
        rows.append(
            (
                name,
                str(len(peer["rounds"])),
                seconds(took["median"] * 1000) if took else "",
                f"{took['spread']:.0%}" if took else "",
                f"{took['median'] / ours['median']:.2f}" if took and ours else "",
                seconds(peer["p95_ms"]["median"]) if "p95_ms" in peer else "",
                f"{per_new['median']:.2f}" if per_new else "",
                f"{later['median']:.2f}" if later else "",
                str(sum(len(each["errors"]) for each in peer["rounds"])),
            )
        )
    settings = result["settings"]
    what = f"{settings['slots']} slots" if "slots" in settings else "one new beginning"
    return [Table(f"{settings.get('clients', '?')} clients at once, {what}", columns, rows)]


def of_limits(limits: Limits) -> Table:
    reading = limits["reading"]
    rows: list[tuple[str, ...]] = [
        (
            f"reading the cache's disk, in order (page cache {reading['page_cache']})",
            f"{console.size(reading['sequential_bytes_per_s']['median'])}/s",
            f"{reading['sequential_bytes_per_s']['spread']:.0%}",
        ),
        (
            f"the same, {reading['readers']} readers at once",
            f"{console.size(reading['parallel_bytes_per_s']['median'])}/s",
            f"{reading['parallel_bytes_per_s']['spread']:.0%}",
        ),
    ]
    if beside := reading.get("beside_bytes_per_s"):
        told = "the same, beside each restart, as much as was stored"
        rows.append((told, f"{console.size(beside['median'])}/s", f"{beside['spread']:.0%}"))
    for name, what, unit in SPEEDS:
        if stat := limits.get(name):
            shown = f"{console.size(stat['median'])}/s" if unit == "B/s" else f"{stat['median']:,.0f} {unit}"
            rows.append((what, shown, f"{stat['spread']:.0%}"))
    return Table("what this machine allows", ("limit", "median", "spread"), rows)


def of_run(summaries: list[dict[str, Any]]) -> Table:
    """Every model on every backend has one line for each size after a restart."""
    columns = ("backend", "model", "size", "cold", "warm", SHORTER, *LIMITS, "from RAM", "result")
    rows: list[tuple[str, ...]] = []
    for summary in summaries:
        result = summary["scenarios"].get("restart")
        for case in result.get("cases", []) if result else []:
            peer = case["peers"].get(OURS, {})
            times = peer.get("ttft_ms", {})
            rows.append(
                (
                    summary["backend"],
                    summary["model"]["name"],
                    str(case["size"]),
                    _median(times, "cold"),
                    _median(times, "warm"),
                    _shorter(case, OURS, 0) if peer else "",
                    _multiple(peer, "warm_times_limit"),
                    _multiple(peer, "warm_times_run_limit"),
                    _median(times, "ram"),
                    verdict(result),
                )
            )
    return Table("after a restart, all models", columns, rows, words=3)
