"""Has many clients ask at once with one new beginning: how often is it evaluated, and how long do they wait?

Their prompts begin with the same static prefix, which nobody has asked before, and end with some words of their own.
Every client has a slot. Another one asks alone, with as long a beginning of its own: the first of those that ask at
once should be answered as soon.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks import rounds
from benchmarks.bench import ROOM_TOKENS, Bench
from benchmarks.crowd import Client, conversation
from benchmarks.progress import RunProgress
from benchmarks.records import CrowdResult, Limits

NAME = "herd"
PREFIX = 2000
OWN_TOKENS = 40
ANSWER_TOKENS = 8


def prefix_of(bench: Bench) -> int:
    return bench.options.prefix or PREFIX


def tokens_of(bench: Bench) -> int:
    return bench.options.tokens or ANSWER_TOKENS


def settings(bench: Bench) -> dict[str, Any]:
    options = bench.options
    return {
        "prefix": prefix_of(bench),
        "clients": options.clients,
        "repeat": options.repeat,
        "tokens": tokens_of(bench),
    }


def slots(bench: Bench) -> int:
    return bench.options.clients


def needs(bench: Bench) -> int:
    return prefix_of(bench) + OWN_TOKENS + tokens_of(bench) + ROOM_TOKENS


def plan(bench: Bench, ctx: int) -> float:
    """Whoever shares nothing evaluates the prefix for every client."""
    clients = bench.options.clients
    own = (clients + 1) * (OWN_TOKENS + tokens_of(bench) * RunProgress.ANSWER_TOKEN)
    prefixes = 2 + len(bench.options.peers) * (clients + 1)
    return bench.options.repeat * (prefixes * prefix_of(bench) + (1 + len(bench.options.peers)) * own)


def play(bench: Bench, result: CrowdResult) -> None:
    def asking(n_clients: int, seed: str) -> list[Client]:
        system = bench.salted(bench.text(prefix_of(bench), seed))
        questions = [partial(bench.text, OWN_TOKENS, f"{seed} {n}") for n in range(n_clients)]
        return [conversation(system, [question]) for question in questions]

    cast = rounds.Cast(
        clients=lambda turn: asking(bench.options.clients, f"herd {turn}"),
        tokens=tokens_of(bench),
        what="client",
        alone=lambda turn: asking(1, f"alone {turn}")[0],
    )
    rounds.play(bench, result, slots(bench), cast)


def end(limits: Limits, result: CrowdResult) -> None:
    rounds.end(result)
