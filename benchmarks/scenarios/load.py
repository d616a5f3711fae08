"""Has several clients ask at once: how much is answered, how soon, and with how many errors?

Every client has a conversation of its own, all with the same system prompt, and asks again as soon as it is answered.
"""

from __future__ import annotations

from functools import partial
from typing import Any, cast

from benchmarks.bench import ROOM_TOKENS, Bench
from benchmarks.crowd import conversation, nothing_told, rush
from benchmarks.peers import Peer, Server
from benchmarks.progress import RunProgress
from benchmarks.records import Limits, LoadPeer, LoadResult
from benchmarks.stats import percentiles

NAME = "load"
PREFIX = 1000
QUESTION_TOKENS = 120
ANSWER_TOKENS = 128


def prefix_of(bench: Bench) -> int:
    return bench.options.prefix or PREFIX


def tokens_of(bench: Bench) -> int:
    return bench.options.tokens or ANSWER_TOKENS


def settings(bench: Bench) -> dict[str, Any]:
    options = bench.options
    return {
        "prefix": prefix_of(bench),
        "clients": options.clients,
        "requests": options.requests,
        "tokens": tokens_of(bench),
    }


def slots(bench: Bench) -> int:
    """Every client has one."""
    return bench.options.clients


def needs(bench: Bench) -> int:
    """This is for one slot."""
    options = bench.options
    return prefix_of(bench) + options.requests * (QUESTION_TOKENS + tokens_of(bench) + 32) + ROOM_TOKENS


def plan(bench: Bench, ctx: int) -> float:
    options = bench.options
    one = QUESTION_TOKENS + tokens_of(bench) * RunProgress.ANSWER_TOKEN
    return (prefix_of(bench) + options.clients * options.requests * one) * (1 + len(options.peers))


def play(bench: Bench, result: LoadResult) -> None:
    result["peers"] = {}
    for peer in bench.peers(slots=slots(bench)):
        with bench.watch(result, peer):
            result["peers"][peer.name] = {"answers": [], "errors": []}
            try:
                _rush(bench, result, peer)
            finally:
                peer.stop()


def _rush(bench: Bench, result: LoadResult, peer: Peer) -> None:
    bench.empty_caches(peer)
    peer.start()
    peer.warm_up()
    peer.pace.clients = bench.options.clients
    if isinstance(peer, Server):
        bench.calibrate(peer)
    system = bench.salted(bench.text(prefix_of(bench), "load"))
    clients = [
        conversation(
            system,
            [partial(bench.text, QUESTION_TOKENS, f"load {number} {turn}") for turn in range(bench.options.requests)],
        )
        for number in range(bench.options.clients)
    ]
    told = nothing_told()
    result["peers"][peer.name] = cast(LoadPeer, told)
    rush(bench, peer, clients, tokens_of(bench), "client", told)
    if told["errors"]:
        result["problems"].append(
            f"{peer.name}: {len(told['errors'])} of {bench.options.clients} clients got an error; {told['errors'][0]}"
        )


def end(limits: Limits, result: LoadResult) -> None:
    for peer in result.get("peers", {}).values():
        answers = peer["answers"]
        if answers and peer.get("seconds"):
            peer["ttft_ms"] = percentiles([answer["ttft_ms"] for answer in answers])
            peer["answers_per_s"] = len(answers) / peer["seconds"]
            peer["tokens_per_s"] = sum(answer["answer_tokens"] for answer in answers) / peer["seconds"]
