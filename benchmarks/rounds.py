"""Plays rounds of many clients at once, with all peers in alternation: what `swarm` and `herd` have in common."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.bench import OURS, Bench, Sent
from benchmarks.crowd import Asked, Client, nothing_told, rush
from benchmarks.peers import Peer, Server
from benchmarks.records import CrowdResult
from benchmarks.stats import percentile, summarise


def play(
    bench: Bench, result: CrowdResult, slots: int, clients_of: Callable[[int], list[Client]], tokens: int, what: str
) -> None:
    """Each round begins with an empty cache on every side, and with other words than the rounds before it."""
    peers = bench.peers(slots=slots)
    result["peers"] = {peer.name: {"rounds": []} for peer in peers}
    for turn in range(bench.options.repeat):
        # Machines grow warm and disks fill: nobody is always the first.
        for peer in bench.standing(result, peers if turn % 2 == 0 else peers[::-1]):
            with bench.watch(result, peer):
                try:
                    _round(bench, result, peer, partial(clients_of, turn), tokens, what)
                finally:
                    peer.stop()


def _round(
    bench: Bench, result: CrowdResult, peer: Peer, clients_of: Callable[[], list[Client]], tokens: int, what: str
) -> None:
    bench.empty_caches(peer)
    peer.start()
    peer.warm_up()
    if isinstance(peer, Server):
        bench.calibrate(peer)
    clients = clients_of()  # How long their texts are depends on what was just learnt.
    peer.pace.clients = len(clients)
    told = nothing_told()
    asked = rush(bench, peer, clients, tokens, what, told)
    result["peers"][peer.name]["rounds"].append({**told, "new": _new_of(peer, asked)})
    if told["errors"]:
        result["problems"].append(
            f"{peer.name}: {len(told['errors'])} of {len(clients)} got an error; {told['errors'][0]}"
        )
    if peer.name == OURS:
        bench.stats(peer, "end")


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
