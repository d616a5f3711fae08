"""Lets chats take turns in one slot: how long does the first token take, by the number of the turn?

Lengths are drawn as they are in collections of real conversations (ShareGPT): most messages are short, some are very
long, answers are longer than questions. With --chats FILE, real ones are replayed: a list of conversations in the
format of ShareGPT (`conversations`, with `from` and `value`) or of OpenAI (`messages`, with `role` and `content`). The
answers in the history are the server's own, as in a chat.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bench import ROOM_TOKENS, Bench, Options, Sent, row_of
from benchmarks.peers import Message, Peer, Server
from benchmarks.progress import RunProgress
from benchmarks.records import ChatResult, ChatTurn, Limits
from benchmarks.stats import percentile, summarise
from pyrun.errors import UserError

NAME = "chat"
CONVERSATIONS = 6
MOST_TURNS = 8
CONTEXT = 7900

# Lengths are log-normal: these are their medians in tokens, and their spreads.
QUESTION_TOKENS, QUESTION_SPREAD = 50, 1.2
ANSWER_TOKENS, ANSWER_SPREAD = 170, 0.8
MEAN_TURNS = 3.5
LONGEST_QUESTION = 1500
LONGEST_ANSWER = 128


@dataclass(frozen=True)
class Exchange:
    question_tokens: int  # 0 where the text is given
    answer_tokens: int
    question: str = ""


Chat = list[Exchange]


def generate(count: int, longest_answer: int, seed: int = 7) -> list[Chat]:
    """They are the same on every machine."""
    rng = random.Random(seed)
    chats: list[Chat] = []
    for _ in range(count):
        n_turns = 1
        while n_turns < MOST_TURNS and (n_turns < 2 or rng.random() < 1 - 1 / MEAN_TURNS):
            n_turns += 1
        chats.append([_exchange(rng, longest_answer) for _ in range(n_turns)])
    return chats


def _exchange(rng: random.Random, longest_answer: int) -> Exchange:
    question = QUESTION_TOKENS * rng.lognormvariate(0, QUESTION_SPREAD)
    answer = ANSWER_TOKENS * rng.lognormvariate(0, ANSWER_SPREAD)
    return Exchange(max(4, min(LONGEST_QUESTION, round(question))), max(8, min(longest_answer, round(answer))))


def read_chats(path: Path, count: int, answer_tokens: int) -> list[Chat]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read conversations from {path}: {error}", "it must be a JSON list") from error
    chats: list[Chat] = []
    for entry in content if isinstance(content, list) else []:
        asked = [
            str(message.get("value", message.get("content", "")))
            for message in _messages(entry)
            if message.get("from", message.get("role")) in ("human", "user")
        ]
        if len(asked) > 1:
            chats.append([Exchange(0, answer_tokens, text) for text in asked[:MOST_TURNS]])
    if not chats:
        raise UserError(f"{path} has no conversation with two questions", "see docs/benchmarks.md for its format")
    return chats[:count]


def _messages(entry: object) -> list[dict[str, Any]]:
    """Finds the messages of one conversation, and leaves out what has another shape."""
    found = entry.get("conversations") or entry.get("messages") if isinstance(entry, dict) else None
    return [message for message in found if isinstance(message, dict)] if isinstance(found, list) else []


def chats_of(bench: Bench) -> list[Chat]:
    count, chats = count_of(bench), bench.options.chats
    return read_chats(chats, count, tokens_of(bench)) if chats is not None else generate(count, tokens_of(bench))


def check(options: Options) -> None:
    """Raises if the conversations that were asked for cannot be read."""
    if options.chats is not None:
        read_chats(options.chats, 1, LONGEST_ANSWER)


def count_of(bench: Bench) -> int:
    return bench.options.conversations or CONVERSATIONS


def tokens_of(bench: Bench) -> int:
    return bench.options.tokens or LONGEST_ANSWER


def settings(bench: Bench) -> dict[str, Any]:
    source = str(bench.options.chats or "generated, lengths as in ShareGPT")
    return {"conversations": count_of(bench), "tokens": tokens_of(bench), "source": source}


def needs(bench: Bench) -> int:
    return CONTEXT


def plan(bench: Bench, ctx: int) -> float:
    exchanges = [exchange for chat in chats_of(bench) for exchange in chat]
    asked = sum(exchange.question_tokens or 200 for exchange in exchanges)
    answers = sum(exchange.answer_tokens for exchange in exchanges) * RunProgress.ANSWER_TOKEN
    return (asked + answers) * (1 + len(bench.options.peers))


def play(bench: Bench, result: ChatResult) -> None:
    result["peers"] = {}
    for peer in bench.peers():
        with bench.watch(result, peer):
            result["peers"][peer.name] = {"turns": []}
            try:
                _replay(bench, result, peer, chats_of(bench))
            finally:
                peer.stop()


def _replay(bench: Bench, result: ChatResult, peer: Peer, chats: list[Chat]) -> None:
    """Each turn is played in all conversations, so that what the slot holds is always another one's."""
    turns = result["peers"][peer.name]["turns"]
    bench.empty_caches(peer)
    peer.start()
    peer.warm_up()
    if isinstance(peer, Server):
        bench.calibrate(peer)
    restores_at = bench.stats(peer, "start").get("restores_at", "")
    histories: list[list[Message]] = [[] for _ in chats]
    sent = Sent()
    for number in range(max(map(len, chats))):
        for which, chat in enumerate(chats):
            if number >= len(chat):
                continue
            exchange, history = chat[number], histories[which]
            question = exchange.question or bench.text(exchange.question_tokens, f"chat {which} {number}")
            history.append({"role": "user", "content": question if number else bench.salted(question)})
            tokens = peer.tokens(history) if isinstance(peer, Server) else []
            if len(tokens) + exchange.answer_tokens + ROOM_TOKENS > bench.ctx:
                result["notes"].append(f"conversation {which + 1} ends before turn {number + 1}: the context is full")
                chats[which] = chat[:number]
                continue
            fresh = bench.fresh(peer, sent, history, restores_at)
            name = f"chat-{which}"
            label = f"chat {which + 1} turn {number + 1}"
            answer = bench.ask(peer, label, history, exchange.answer_tokens, conversation=name, ignore_eos=True)
            peer.keep(name)
            history.append({"role": "assistant", "content": answer.text})
            turns.append(
                {
                    "conversation": which + 1,
                    "turn": number + 1,
                    **row_of(answer, fresh),
                }
            )
            bench.hold_to_promise(result, peer, label, answer, fresh, restores_at)


def end(limits: Limits, result: ChatResult) -> None:
    for peer in result.get("peers", {}).values():
        by_turn: dict[int, list[ChatTurn]] = {}
        for turn in peer["turns"]:
            by_turn.setdefault(turn["turn"], []).append(turn)
        peer["by_turn"] = [
            {
                "turn": number,
                "ttft_ms": summarise([turn["ttft_ms"] for turn in turns]),
                "p90_ms": percentile([turn["ttft_ms"] for turn in turns], 90),
                "n_tokens": summarise([turn["n_tokens"] for turn in turns])["median"],
                "evaluated": summarise([turn["evaluated"] for turn in turns])["median"],
            }
            for number, turns in sorted(by_turn.items())
        ]
