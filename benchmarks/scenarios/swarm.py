"""Has more agents work at once than there are slots: how long does all of their work take, and how long each turn?

All have the same static prefix and a conversation of their own. A turn adds a tool result, and is asked as soon as the
turn before it is answered: slots are taken over again and again.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks import rounds
from benchmarks.bench import ROOM_TOKENS, Bench
from benchmarks.crowd import Client, conversation
from benchmarks.progress import RunProgress
from benchmarks.records import CrowdResult, Limits

NAME = "swarm"
PREFIX = 2000
TURN_TOKENS = 300
ANSWER_TOKENS = 32
TEMPLATE_TOKENS = 32  # a template adds so many to a turn, at most


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
        "slots": options.slots,
        "repeat": options.repeat,
        "tokens": tokens_of(bench),
    }


def slots(bench: Bench) -> int:
    return bench.options.slots


def needs(bench: Bench) -> int:
    turn = TURN_TOKENS + tokens_of(bench) + TEMPLATE_TOKENS
    return prefix_of(bench) + bench.options.requests * turn + ROOM_TOKENS


def plan(bench: Bench, ctx: int) -> float:
    """Without a cache, about every turn is evaluated from the start."""
    options = bench.options
    turns = options.clients * options.requests
    own = turns * (TURN_TOKENS + tokens_of(bench) * RunProgress.ANSWER_TOKEN)
    again = turns * (prefix_of(bench) + options.requests * TURN_TOKENS / 2)
    return options.repeat * (prefix_of(bench) + own + len(options.peers) * (again + own))


def play(bench: Bench, result: CrowdResult) -> None:
    options = bench.options

    def clients(turn: int) -> list[Client]:
        system = bench.salted(bench.text(prefix_of(bench), f"swarm {turn}"))
        return [
            conversation(
                system,
                [partial(bench.text, TURN_TOKENS, f"swarm {turn} {number} {k}") for k in range(options.requests)],
            )
            for number in range(options.clients)
        ]

    rounds.play(bench, result, slots(bench), rounds.Cast(clients, tokens_of(bench), "agent"))


def end(limits: Limits, result: CrowdResult) -> None:
    rounds.end(result)
