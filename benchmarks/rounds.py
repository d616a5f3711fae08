"""Plays rounds of many clients at once, with all peers in alternation: what `swarm` and `herd` have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.bench import OURS, Bench, Sent
from benchmarks.crowd import Asked, Client, nothing_told, rush
from benchmarks.peers import Peer, Server
from benchmarks.records import CrowdAnswer, CrowdResult
from benchmarks.stats import percentile, summarise


@dataclass(frozen=True)
class Cast:
    """Who asks in a round, by its number."""

    clients: Callable[[int], list[Client]]
    tokens: int  # of an answer
    what: str  # a client is
    alone: Callable[[int], Client] | None = None  # asks as well, while nobody else does


def play(bench: Bench, result: CrowdResult, slots: int, cast: Cast) -> None:
    """Each round begins with an empty cache on every side, and with other words than the rounds before it."""
    peers = bench.peers(slots=slots)
    result["peers"] = {peer.name: {"rounds": []} for peer in peers}
    for turn in range(bench.options.repeat):
        # Machines grow warm and disks fill: nobody is always the first.
        for peer in bench.standing(result, peers if turn % 2 == 0 else peers[::-1]):
            with bench.watch(result, peer):
                try:
                    _round(bench, result, peer, cast, turn)
                finally:
                    peer.stop()


def _round(bench: Bench, result: CrowdResult, peer: Peer, cast: Cast, turn: int) -> None:
    alone = _ask_alone(bench, peer, cast, turn)
    _start(bench, peer)
    clients = cast.clients(turn)  # How long their texts are depends on what was just learnt.
    peer.pace.clients = len(clients)
    told = nothing_told()
    asked = rush(bench, peer, clients, cast.tokens, cast.what, told)
    result["peers"][peer.name]["rounds"].append({**told, "new": _new_of(peer, asked), "alone": alone})
    if told["errors"]:
        result["problems"].append(
            f"{peer.name}: {len(told['errors'])} of {len(clients)} got an error; {told['errors'][0]}"
        )
    if peer.name == OURS:
        bench.stats(peer, "end")


def _start(bench: Bench, peer: Peer) -> None:
    bench.empty_caches(peer)
    peer.start()
    peer.warm_up()
    if isinstance(peer, Server):
        bench.calibrate(peer)


def _ask_alone(bench: Bench, peer: Peer, cast: Cast, turn: int) -> CrowdAnswer | None:
    """By a server of its own: what it leaves would slow the others down."""
    if cast.alone is None:
        return None
    _start(bench, peer)
    told = nothing_told()
    rush(bench, peer, [cast.alone(turn)], cast.tokens, "alone", told)
    peer.stop()
    return told["answers"][0] if told["answers"] else None


def _new_of(peer: Peer, asked: Asked) -> int | None:
    if not isinstance(peer, Server):
        return None
    sent = Sent()
    return sum(sent.add(peer.tokens(messages)).new for messages in asked)


def end(result: CrowdResult) -> None:
    for peer in result.get("peers", {}).values():
        rounds = [each for each in peer["rounds"] if each["answers"]]
        if not rounds:
            continue
        peer["seconds"] = summarise([each["seconds"] for each in rounds])
        peer["p95_ms"] = summarise([percentile([row["total_ms"] for row in each["answers"]], 95) for each in rounds])
        ratios = [sum(row["evaluated"] for row in each["answers"]) / each["new"] for each in rounds if each["new"]]
        if ratios:
            peer["evaluated_per_new"] = summarise(ratios)
        later = [
            min(_by_token(row) for row in _evaluating(each["answers"])) / _by_token(alone)
            for each in rounds
            if (alone := each["alone"]) is not None
        ]
        if later:
            peer["first_to_alone"] = summarise(later)


def _evaluating(answers: list[CrowdAnswer]) -> list[CrowdAnswer]:
    """Those that evaluated the beginning: whoever went on from it tells nothing of what that costs."""
    most = max(row["evaluated"] for row in answers)
    return [row for row in answers if 2 * row["evaluated"] > most]


def _by_token(row: CrowdAnswer) -> float:
    """Two prompts of as many words may have tokens more or less."""
    return row["ttft_ms"] / row["n_tokens"]
