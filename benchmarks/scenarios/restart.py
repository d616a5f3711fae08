"""Sends the same prompt before and after a restart: how long does the first token take?

- cold: a fresh server with an empty cache;
- again: the same prompt at once, from the slot, as the answer of a process that never stopped;
- warm: the server was stopped and started, and what it has stored is not in the page cache;
- ram: another prompt took the slot in between, and nothing was restarted;
- ahead: our server was stopped and started once more, and nobody asked before it had read what was used last. In the
  other phases it reads nothing by itself.

A server that is not ours to restart is asked twice instead, with a new prompt each round.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.bench import OURS, ROOM_TOKENS, SIZES, UPSTREAM, Bench
from benchmarks.limits import eval_ms, read_part, restore_limit_ms, scratch_file, speed_of
from benchmarks.peers import Answer, Peer, PeerError, Server
from benchmarks.progress import RunProgress
from benchmarks.records import (
    Case,
    Limits,
    Measured,
    Multiple,
    MultipleOfPhase,
    RestartResult,
    Result,
    Round,
)
from benchmarks.results import times_shorter, write_json
from benchmarks.stats import common_prefix, summarise
from pyrun.errors import UserError

NAME = "restart"
ANSWER_TOKENS = 128
PHASES = ("cold", "warm", "ram", "ahead")
# Which multiples of its limit a phase has, and what the median over the rounds is called.
MULTIPLES: tuple[tuple[str, Multiple, MultipleOfPhase], ...] = (
    ("warm", "times_limit", "warm_times_limit"),
    ("warm", "times_run_limit", "warm_times_run_limit"),
    ("ram", "times_limit", "ram_times_limit"),
)
# For models that go on at anchors only, the last one is this many tokens before the prompt's end at most.
ANCHOR_TOKENS = 4
READING_SECONDS = 600
LEAST_TWIN = 16 << 20  # fewer bytes are read before a clock can tell


def size_of(name: str) -> int:
    if name in SIZES:
        return SIZES[name]
    if name.isdigit() and int(name) > 0:
        return int(name)
    raise UserError(f"there is no size {name!r}", f"sizes are {', '.join(SIZES)}, or a number of tokens")


def tokens_of(bench: Bench) -> int:
    return bench.options.tokens or ANSWER_TOKENS


def settings(bench: Bench) -> dict[str, Any]:
    options = bench.options
    return {"sizes": options.sizes, "tokens": tokens_of(bench), "repeat": options.repeat, "damage": options.damage}


def needs(bench: Bench) -> int:
    return max(map(size_of, bench.options.sizes)) + tokens_of(bench) + ROOM_TOKENS


def fitting(bench: Bench, ctx: int) -> list[str]:
    return [s for s in bench.options.sizes if size_of(s) + tokens_of(bench) + ROOM_TOKENS <= ctx]


def plan(bench: Bench, ctx: int) -> float:
    """There is an answer for each phase; only upstream evaluates the prompt twice."""
    options = bench.options
    answers = len(PHASES) * tokens_of(bench) * RunProgress.ANSWER_TOKEN
    sizes = [size_of(size) for size in fitting(bench, ctx)]
    twice = sum(peer == UPSTREAM for peer in options.peers)
    return options.repeat * sum((1 + len(options.peers)) * (size + answers) + twice * size for size in sizes)


def play(bench: Bench, result: RestartResult) -> None:
    options = bench.options
    sizes = fitting(bench, bench.ctx)
    left_out = [size for size in options.sizes if size not in sizes]
    if left_out:
        result["notes"].append(f"left out, because they do not fit {bench.ctx} tokens: {', '.join(left_out)}")
    if not sizes:
        raise UserError(
            f"no size fits a context of {bench.ctx} tokens", "give smaller ones, such as --sizes 500, or a larger --ctx"
        )
    peers = bench.peers()
    result["cases"] = []
    try:
        for size in sizes:
            case: Case = {"size": size, "peers": {peer.name: {"rounds": []} for peer in peers}}
            result["cases"].append(case)
            for turn in range(options.repeat):
                for peer in bench.standing(result, peers):
                    with bench.watch(result, peer):
                        _round(bench, result, case, peer, turn)
            end(bench.limits, result)
            write_json(bench.room.folder / f"{size}.json", case)
    finally:
        for peer in peers:
            peer.stop()


def _round(bench: Bench, result: Result, case: Case, peer: Peer, turn: int) -> None:
    entry = case["peers"][peer.name]
    row: Round = {}
    entry["rounds"].append(row)
    size = case["size"]

    def ask(phase: str, *, by_hand: bool = False) -> Answer:
        label = f"{size} {phase} {turn + 1}"
        kept_as = size if by_hand else ""
        answer = bench.ask(peer, label, prompt, tokens_of(bench), conversation=kept_as, ignore_eos=True)
        row[phase] = _measured(answer, bench.stats(peer, label))
        return answer

    bench.empty_caches(peer)
    peer.start()
    if isinstance(peer, Server):
        bench.calibrate(peer)
    # A server that is not ours to empty must not know the prompt.
    seed = "restart" if peer.can_restart else f"restart {os.urandom(8).hex()}"
    prompt = [{"role": "user", "content": bench.text(size_of(size), seed)}]
    peer.warm_up()
    cold = ask("cold")
    if not peer.can_restart:
        warm = ask("warm")
        _compare(result, peer, f"{size}, warm", cold.text, cold.text, warm.text)
        return
    _check_cold(result, peer, size, cold)
    if turn == 0:
        entry["again_text"] = ask("again").text
    peer.keep(size)
    peer.stop()
    if bench.options.damage and isinstance(peer, Server) and peer.cache is not None:
        damage(peer.cache)
    with _twin(peer) as twin:
        n_bytes = twin.stat().st_size if twin is not None else 0
        dropped = bench.forget(result, peer, *([twin] if twin is not None else []))
        peer.start()
        peer.warm_up()
        seconds = read_part(twin, 0, n_bytes // 2) if twin is not None else 0
        warm = ask("warm", by_hand=True)
        peer.warm_up()  # it takes the slot
        if twin is not None:
            bench.stats(peer, f"{size} saved {turn + 1}", flush=True)  # so that nothing is written meanwhile
            seconds += read_part(twin, n_bytes // 2, n_bytes - n_bytes // 2)
            row["warm"]["read_bytes_per_s"] = n_bytes / seconds
    row["warm"]["page_cache"] = "dropped" if dropped else "kept"
    ram = ask("ram")
    for phase, answer in (("warm", warm), ("ram", ram)):
        _compare(result, peer, f"{size}, {phase}", cold.text, entry["again_text"], answer.text)
    if peer.name == OURS:
        ahead = _ahead(bench, result, peer, lambda: ask("ahead"))
        _compare(result, peer, f"{size}, ahead", cold.text, entry["again_text"], ahead.text)
        _check(result, size, warm, ram, ahead, bench.stats(peer, f"{size} end {turn + 1}"))
    peer.stop()


def _ahead(bench: Bench, result: Result, peer: Peer, ask: Callable[[], Answer]) -> Answer:
    """Asks after a restart that nobody was in a hurry with."""
    peer.stop()
    bench.forget(result, peer)
    if isinstance(peer, Server):
        peer.reads_ahead = True
    try:
        peer.start()
        if isinstance(peer, Server):
            _wait_for_reading(peer)
        peer.warm_up()
        return ask()
    finally:
        if isinstance(peer, Server):
            peer.reads_ahead = False


def _wait_for_reading(server: Server) -> None:
    deadline = time.monotonic() + READING_SECONDS
    while server.get("/cache")["reading_ahead"]:
        if time.monotonic() > deadline:
            raise PeerError(f"{server.name} still reads after {READING_SECONDS} s", f"its log is {server.log}")
        time.sleep(0.1)


@contextlib.contextmanager
def _twin(peer: Peer) -> Iterator[Path | None]:
    """Makes a plain file as large as what our server has stored, and written after that.

    Reading it, half before the restore and half afterwards, is what the restore is held against: disks, virtual ones
    above all, change their speed from one moment to the next.
    """
    cache = peer.cache if isinstance(peer, Server) else None
    size = max(LEAST_TWIN, sum(path.stat().st_size for path in cache.rglob("*"))) if cache is not None else 0
    if cache is None or shutil.disk_usage(cache).free < 2 * size:
        yield None
        return
    with scratch_file(cache.parent, size) as path:
        yield path


def _measured(answer: Answer, stats: dict[str, Any]) -> Measured:
    timings = answer.timings
    row: Measured = {
        "n_tokens": answer.n_prompt,
        "reused": answer.reused,
        "evaluated": answer.evaluated,
        "source": answer.source,
        "miss": answer.miss,
        "ttft_ms": answer.ttft_ms,
        "total_ms": answer.total_ms,
        "restore_ms": timings.get("restore_ms"),
        "prompt_ms": timings.get("prompt_ms"),
        "prefill_per_s": timings.get("prompt_per_second"),
        "decode_per_s": timings.get("predicted_per_second"),
    }
    if stats:
        row["bytes_read"] = stats["counters"]["bytes_read"]
        row["bytes_from_ram"] = stats["counters"]["bytes_from_ram"]
        row["copy_bytes_per_s"] = stats["speed"]["copy_bytes_per_s"]
    return row


def _check_cold(result: Result, peer: Peer, size: str, cold: Answer) -> None:
    if cold.reused:
        result["problems"].append(f"{peer.name}, {size}: {cold.reused} tokens of the cold prompt were already known")


def _compare(result: Result, peer: Peer, label: str, cold: str, again: str, reused: str) -> None:
    """Reuse that changes the answer is not reuse.

    Where even the process that never stopped gives another answer the second time, because it evaluates the last
    token alone and not in a batch, that answer is the one to be equal to.
    """
    if reused == cold:
        return
    at = common_prefix(reused, cold)
    if reused == again:
        result["notes"].append(
            f"{peer.name}, {label}: from character {at} on, the answer is that of the process that never stopped when "
            "asked again, not its first one: rounding, not the restart"
        )
        return
    told = f"the answer parts from the cold one at character {at}: {_around(reused, at)} after {_around(cold, at)}"
    result["problems" if peer.name == OURS else "notes"].append(f"{peer.name}, {label}: {told}")


def _around(text: str, at: int) -> str:
    return repr(text[max(0, at - 12) : at + 12])


def _check(result: Result, size: str, warm: Answer, ram: Answer, ahead: Answer, stats: dict[str, Any]) -> None:
    """Notes where our reuse is not what the store promised."""
    allowed = ANCHOR_TOKENS if stats["restores_at"] == "anchors" else 1
    damaged = sum(stats["damaged"].values())
    in_ram = ("hot", "warm")
    for phase, answer, sources in (("warm", warm, ("cold",)), ("ram", ram, in_ram), ("ahead", ahead, in_ram)):
        if answer.miss == "recompute_faster":
            result["notes"].append(f"{size}, {phase}: evaluated again, because that is faster than reading it")
        elif answer.evaluated > allowed or answer.source not in sources:
            why = f"; {damaged} damaged files were set aside" if damaged else ""
            result["problems"].append(
                f"{OURS}, {size}, {phase}: {answer.reused} of {answer.n_prompt} tokens reused from {answer.source}, "
                f"all but {allowed} were promised from {' or '.join(sources)}; the server says: {answer.miss}{why}"
            )


def damage(folder: Path) -> None:
    """Changes a byte in the middle of every file with state, as a failing disk would."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.stat().st_size > 4096:
            with path.open("r+b") as file:
                file.seek(path.stat().st_size // 2)
                byte = file.read(1)
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte[0] ^ 0x55]))


def end(limits: Limits, result: RestartResult) -> None:
    """Adds medians over the rounds, ratios, and how far each restore is from its limit."""
    for case in result.get("cases", []):
        for peer in case["peers"].values():
            peer["ttft_ms"] = {
                phase: summarise([row[phase]["ttft_ms"] for row in peer["rounds"] if phase in row])
                for phase in PHASES
                if any(phase in row for row in peer["rounds"])
            }
            for row in peer["rounds"]:
                _add_limits(limits, row)
            for phase, multiple, name_in_peer in MULTIPLES:
                found = [row[phase][multiple] for row in peer["rounds"] if phase in row and multiple in row[phase]]
                if found:
                    peer[name_in_peer] = statistics.median(found)
        for name, peer in case["peers"].items():
            if ratio := times_shorter(case, name):
                peer["times_shorter"] = ratio
    rows = [row for case in result.get("cases", []) for peer in case["peers"].values() for row in peer["rounds"]]
    beside = [row["warm"]["read_bytes_per_s"] for row in rows if "warm" in row and row["warm"].get("read_bytes_per_s")]
    if beside:
        limits["reading"]["beside_bytes_per_s"] = summarise(beside)


def _add_limits(limits: Limits, row: Round) -> None:
    if "warm" not in row or "bytes_read" not in row["warm"]:
        return
    prefill, decode = row["cold"]["prefill_per_s"], row["cold"]["decode_per_s"]
    assert prefill is not None and decode is not None  # a server that tells of bytes tells of its speeds
    warm = row["warm"]
    run_speed = speed_of(limits)
    speed = warm.get("read_bytes_per_s") or run_speed
    warm["limit_ms"] = restore_limit_ms(warm["bytes_read"], speed, warm["evaluated"], prefill, decode)
    warm["times_limit"] = warm["ttft_ms"] / warm["limit_ms"]
    warm["run_limit_ms"] = restore_limit_ms(warm["bytes_read"], run_speed, warm["evaluated"], prefill, decode)
    warm["times_run_limit"] = warm["ttft_ms"] / warm["run_limit_ms"]
    if "ram" in row and row["ram"].get("copy_bytes_per_s"):
        ram = row["ram"]
        copied = ram["bytes_from_ram"] - warm["bytes_from_ram"]
        ram["limit_ms"] = copied / ram["copy_bytes_per_s"] * 1000 + eval_ms(ram["evaluated"], prefill, decode)
        ram["times_limit"] = ram["ttft_ms"] / ram["limit_ms"]
