"""Plays an agent's session of eleven turns: prompts grow, part and come back, with a crash in the middle.

The script is recorded, so that every peer is sent the same prompts: a static prefix with tool schemas, tool results
that grow, answers whose reasoning the client does not send back, a side conversation with the same prefix, a branch
back to an older turn, an edited answer, and kill -9 with a restart. Truly new are the tokens of a prompt beyond the
longest prefix that it shares with any sent before.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.bench import OURS, ROOM_TOKENS, UPSTREAM, Bench, Sent, row_of
from benchmarks.peers import Message, Peer, Server
from benchmarks.progress import RunProgress
from benchmarks.records import AgentResult, AgentTurn, Limits, Result
from benchmarks.text import tool_schemas
from pyrun.errors import UserError

NAME = "agent"
LEAST_PREFIX = 100
PREFIXES = (4000, 17000)
GROWTH = 3000  # the session adds so many tokens to its prefix
ANSWER_TOKENS = 48
TOOL_SECONDS = 1  # a tool runs at least so long before its result is sent

Text = Callable[[int, object], str]


@dataclass
class Conversation:
    """What the client sends. Recorded answers stand for what is left of an answer without its reasoning."""

    name: str
    messages: list[Message]

    def ask(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})

    def keep(self, answer: str) -> None:
        self.messages.append({"role": "assistant", "content": answer})


@dataclass
class Turn:
    what: str
    conversation: Conversation
    restart_before: bool = False


def script(system: str, text: Text) -> Iterator[Turn]:
    """Plays eleven turns; `text` writes about as many tokens as it is told."""
    static: Message = {"role": "system", "content": system}
    main = Conversation("main", [static])

    def result(n_tokens: int, seed: int) -> str:
        return "Tool result:\n" + text(n_tokens, f"result {seed}")

    def call(seed: int) -> str:
        return "I will look at it. Tool call: " + text(30, f"call {seed}")

    main.ask("Find out why the test fails. " + text(60, "task"))
    yield Turn("first task", main)
    main.keep(call(1))
    main.ask(result(130, 2))
    yield Turn("tool result", main)
    main.keep(call(2))
    main.ask(result(220, 3))
    yield Turn("larger tool result", main)
    branch = Conversation("branch", list(main.messages))
    main.keep(call(3))
    side = Conversation("side", [static])
    side.ask("Summarise the open files. " + text(40, "side"))
    yield Turn("side conversation, same prefix", side)
    side.keep(call(4))
    main.ask(result(320, 5))
    yield Turn("back to the main one", main)
    main.keep(call(5))
    main.ask(result(420, 6))
    yield Turn("after kill -9 and a restart", main, restart_before=True)
    main.keep(call(6))
    branch.messages[-1] = {"role": "user", "content": branch.messages[-1]["content"] + " But look at the other file."}
    yield Turn("branch back to turn 3", branch)
    branch.keep(call(7))
    branch.ask(result(520, 8))
    yield Turn("the branch goes on", branch)
    main.ask("Now write the fix. " + text(80, "fix"))
    yield Turn("the main one again", main)
    side.ask("And the closed ones? " + text(60, "closed"))
    yield Turn("the side one again", side)
    main.keep("The fix is written, and I have changed this answer.")
    main.ask("Write a test for it. " + text(70, "test"))
    yield Turn("the main one, its answer edited", main)


def prefix_of(bench: Bench) -> int:
    return bench.options.prefix or PREFIXES[0]


def tokens_of(bench: Bench) -> int:
    return bench.options.tokens or ANSWER_TOKENS


def settings(bench: Bench) -> dict[str, Any]:
    return {"prefix": prefix_of(bench), "tokens": tokens_of(bench)}


def growth_of(bench: Bench) -> int:
    """A context needs so much beside the prefix."""
    return GROWTH + max(0, tokens_of(bench) - ANSWER_TOKENS) + ROOM_TOKENS


def needs(bench: Bench) -> int:
    return prefix_of(bench) + growth_of(bench)


def plan(bench: Bench, ctx: int) -> float:
    answers = 11 * tokens_of(bench) * RunProgress.ANSWER_TOKEN
    ours = prefix_of(bench) + GROWTH + answers
    theirs = 2.5 * (prefix_of(bench) + GROWTH) + answers
    return ours + theirs * len(bench.options.peers)


def play(bench: Bench, result: AgentResult) -> None:
    fitting = bench.ctx - growth_of(bench)
    if fitting < prefix_of(bench):
        raise UserError(
            f"a session with a prefix of {prefix_of(bench)} tokens needs a context of {needs(bench)}, not {bench.ctx}",
            f"a prefix of {fitting} fits: --prefix" if fitting >= LEAST_PREFIX else "it takes a larger --ctx",
        )
    result["peers"] = {}
    texts: dict[str, list[str]] = {}
    # Peers go one after the other: each has its own slots and caches, and only one is on the machine at a time.
    for peer in bench.peers():
        with bench.watch(result, peer):
            result["peers"][peer.name] = {"turns": []}
            try:
                _session(bench, result, peer, texts.setdefault(peer.name, []))
            finally:
                peer.stop()
    _note_partings(result, texts.get(OURS, []), texts.get(UPSTREAM, []))


def _note_partings(result: Result, ours: list[str], upstreams: list[str]) -> None:
    """That is no fault: who reuses another part evaluates the rest in other batches, and these round differently."""
    parted = [str(n) for n, (a, b) in enumerate(zip(ours, upstreams, strict=False), 1) if a != b]
    if parted:
        result["notes"].append(
            f"the answers of {OURS} and {UPSTREAM} part in turn {', '.join(parted)}: "
            "batches of other sizes round differently"
        )


def _session(bench: Bench, result: AgentResult, peer: Peer, texts: list[str]) -> None:
    turns = result["peers"][peer.name]["turns"]
    sent = Sent()
    bench.empty_caches(peer)
    peer.start()
    peer.warm_up()
    if isinstance(peer, Server):
        bench.calibrate(peer)
    restores_at = bench.stats(peer, "start").get("restores_at", "")
    system = _system_prompt(bench, peer, result["settings"])
    last = ""
    for number, turn in enumerate(script(system, bench.text), 1):
        conversation = turn.conversation
        restarted = turn.restart_before and peer.can_restart
        if restarted:
            time.sleep(TOOL_SECONDS)
            peer.stop(signal.SIGKILL)
            bench.forget(result, peer)
            peer.start()
            peer.warm_up()
        fresh = bench.fresh(peer, sent, conversation.messages, restores_at)
        # By hand, a slot is restored when it holds something else.
        by_hand = conversation.name if restarted or conversation.name != last else ""
        last = conversation.name
        label = f"turn {number}"
        answer = bench.ask(peer, label, conversation.messages, tokens_of(bench), conversation=by_hand, ignore_eos=True)
        texts.append(answer.text)
        peer.keep(conversation.name)
        bench.stats(peer, label)
        row: AgentTurn = {
            "what": turn.what,
            **row_of(answer, fresh),  # type: ignore[typeddict-item]  # it has no estimate
            "prefill_per_s": answer.timings.get("prompt_per_second"),
            "total_ms": answer.total_ms,
        }
        turns.append(row)
        bench.hold_to_promise(result, peer, f"turn {number} ({turn.what})", answer, fresh, restores_at)


def _system_prompt(bench: Bench, peer: Peer, settings: dict[str, Any]) -> str:
    """JSON has more tokens per word than prose has: whole lines are left out until the rest is short enough."""
    wanted = prefix_of(bench)
    lines = ["You are a coding agent. Your tools:", *tool_schemas(bench.n_words(wanted), "agent").split("\n")]
    if "tools" not in settings and isinstance(peer, Server):
        count = len(peer.post("/tokenize", {"content": "\n".join(lines)})["tokens"])
        settings["tools"] = min(len(lines) - 1, round(len(lines) * wanted / count))
    return bench.salted("\n".join(lines[: 1 + settings.get("tools", len(lines))]))


def end(limits: Limits, result: AgentResult) -> None:
    """Estimates what each turn would have taken from nothing, at the speed of the first, which was evaluated whole."""
    for peer in result.get("peers", {}).values():
        turns = peer["turns"]
        if not turns:
            continue
        # Others may tell neither how fast they are nor how many tokens they were sent.
        speed = turns[0]["prefill_per_s"] or turns[0]["n_tokens"] / turns[0]["ttft_ms"] * 1000
        for turn in turns:
            turn["cold_ms_estimated"] = turn["n_tokens"] / speed * 1000 if speed else 0.0
        new = [turn["new"] for turn in turns if turn["new"]]
        if len(new) == len(turns):
            peer["evaluated_per_new"] = sum(turn["evaluated"] for turn in turns) / sum(new)
        peer["ttft_ms_sum"] = sum(turn["ttft_ms"] for turn in turns)
        if all("total_ms" in turn for turn in turns):
            peer["total_ms_sum"] = sum(turn["total_ms"] for turn in turns)
