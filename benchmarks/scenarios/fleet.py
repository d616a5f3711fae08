"""Plays many conversations with one system prompt: what does each add on disk, how soon is it answered?

Beside it stands what whole-state checkpoints would take: the state of all of a conversation's tokens, once per turn.
"""

from __future__ import annotations

from typing import Any

from benchmarks.bench import ROOM_TOKENS, Bench, Sent, row_of
from benchmarks.peers import Message, Peer, Server
from benchmarks.progress import RunProgress
from benchmarks.records import FleetResult, FleetTurn, Limits
from benchmarks.stats import summarise
from pyrun.errors import UserError

NAME = "fleet"
CONVERSATIONS = 16
PREFIX = 2000
QUESTION_TOKENS = 80
ANSWER_TOKENS = 48


def prefix_of(bench: Bench) -> int:
    return bench.options.prefix or PREFIX


def count_of(bench: Bench) -> int:
    return bench.options.conversations or CONVERSATIONS


def tokens_of(bench: Bench) -> int:
    return bench.options.tokens or ANSWER_TOKENS


def settings(bench: Bench) -> dict[str, Any]:
    return {
        "prefix": prefix_of(bench),
        "conversations": count_of(bench),
        "turns": bench.options.turns,
        "tokens": tokens_of(bench),
    }


def needs(bench: Bench) -> int:
    return prefix_of(bench) + bench.options.turns * (QUESTION_TOKENS + tokens_of(bench) + 32) + ROOM_TOKENS


def plan(bench: Bench, ctx: int) -> float:
    turns = count_of(bench) * bench.options.turns
    one = prefix_of(bench) + turns * (QUESTION_TOKENS + tokens_of(bench) * RunProgress.ANSWER_TOKEN)
    return one * (1 + len(bench.options.peers))


def play(bench: Bench, result: FleetResult) -> None:
    if bench.ctx < needs(bench):
        raise UserError(
            f"a system prompt of {prefix_of(bench)} tokens needs a context of {needs(bench)}, not {bench.ctx}",
            "give a shorter one, such as --prefix 1000",
        )
    result["per_token_bytes"] = bench.facts.kv_per_token("f16", "f16")
    result["fixed_bytes"] = bench.facts.checkpoint_bytes("f16", "f16")
    result["peers"] = {}
    for peer in bench.peers():
        with bench.watch(result, peer):
            result["peers"][peer.name] = {"turns": []}
            try:
                _sail(bench, result, peer)
            finally:
                peer.stop()


def _sail(bench: Bench, result: FleetResult, peer: Peer) -> None:
    turns = result["peers"][peer.name]["turns"]
    bench.empty_caches(peer)
    peer.start()
    peer.warm_up()
    if isinstance(peer, Server):
        bench.calibrate(peer)
    before = bench.stats(peer, "start")
    restores_at = before.get("restores_at", "")
    system: Message = {"role": "system", "content": bench.salted(bench.text(prefix_of(bench), "fleet"))}
    histories: list[list[Message]] = [[system] for _ in range(count_of(bench))]
    sent = Sent()
    for number in range(bench.options.turns):
        for which, history in enumerate(histories):
            history.append({"role": "user", "content": bench.text(QUESTION_TOKENS, f"fleet {which} {number}")})
            fresh = bench.fresh(peer, sent, history, restores_at)
            label = f"conversation {which + 1} turn {number + 1}"
            # By hand, nobody knows that another conversation's slot would do for the beginning of this one.
            name = f"fleet-{which}"
            answer = bench.ask(peer, label, history, tokens_of(bench), conversation=name, ignore_eos=True)
            by_hand = peer.keep(name)
            history.append({"role": "assistant", "content": answer.text})
            after = bench.stats(peer, label, flush=True)
            turn: FleetTurn = {
                "conversation": which + 1,
                "turn": number + 1,
                **row_of(answer, fresh),  # type: ignore[typeddict-item]  # it has no bytes
                "answer_tokens": answer.n_answer,
                "whole_bytes": _whole(result, answer.n_prompt + answer.n_answer),
            }
            if after:
                turn["written_bytes"] = after["counters"]["bytes_written"] - before["counters"]["bytes_written"]
                turn["disk_bytes"] = after["state"]["disk_bytes"]
                before = after
            elif by_hand:
                turn["written_bytes"] = by_hand
            turns.append(turn)
            bench.hold_to_promise(result, peer, label, answer, fresh, restores_at)


def _whole(result: FleetResult, n_tokens: int) -> float:
    return float(n_tokens * result["per_token_bytes"] + result["fixed_bytes"])


def end(limits: Limits, result: FleetResult) -> None:
    for peer in result.get("peers", {}).values():
        turns = peer["turns"]
        later = [turn["ttft_ms"] for turn in turns if turn["turn"] == 1 and turn["conversation"] > 1]
        second = [turn["ttft_ms"] for turn in turns if turn["turn"] > 1]
        first = [turn["ttft_ms"] for turn in turns if turn["turn"] == 1 and turn["conversation"] == 1]
        peer["ttft_ms"] = {
            name: summarise(values)
            for name, values in (("first", first), ("others", later), ("next_turns", second))
            if values
        }
        written = [turn["written_bytes"] for turn in turns if "written_bytes" in turn]
        if written:
            peer["written_bytes"] = sum(written)
            peer["whole_bytes"] = sum(turn["whole_bytes"] for turn in turns)
        disk = [turn["disk_bytes"] for turn in turns if "disk_bytes" in turn]
        if disk:
            peer["disk_bytes"] = disk[-1]
            # This is what whole states would take if only the newest of each conversation were kept.
            newest = {turn["conversation"]: turn["whole_bytes"] for turn in turns}
            peer["whole_disk_bytes"] = sum(newest.values())
