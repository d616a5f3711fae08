"""Has several clients ask at once: how much is answered, how soon, and with how many errors?

Every client has a conversation of its own, all with the same system prompt, and asks again as soon as it is answered.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from benchmarks.bench import ROOM_TOKENS, Bench
from benchmarks.peers import Answer, Message, Peer, PeerError, Server
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


def needs(bench: Bench) -> int:
    """Every client has a slot of its own: this is for one."""
    options = bench.options
    return prefix_of(bench) + options.requests * (QUESTION_TOKENS + tokens_of(bench) + 32) + ROOM_TOKENS


def plan(bench: Bench, ctx: int) -> float:
    options = bench.options
    one = QUESTION_TOKENS + tokens_of(bench) * RunProgress.ANSWER_TOKEN
    return (prefix_of(bench) + options.clients * options.requests * one) * (1 + len(options.peers))


def play(bench: Bench, result: LoadResult) -> None:
    result["peers"] = {}
    for peer in bench.peers(slots=bench.options.clients):
        with bench.watch(result, peer):
            result["peers"][peer.name] = {"answers": [], "errors": []}
            try:
                _rush(bench, result, peer)
            finally:
                peer.stop()


def _rush(bench: Bench, result: LoadResult, peer: Peer) -> None:
    entry = result["peers"][peer.name]
    bench.empty_caches(peer)
    peer.start()
    peer.warm_up()
    peer.pace.clients = bench.options.clients
    if isinstance(peer, Server):
        bench.calibrate(peer)
    stop = threading.Event()
    lock = threading.Lock()
    began = time.perf_counter()

    def client(number: int) -> None:
        system = bench.salted(bench.text(prefix_of(bench), "load"))
        history: list[Message] = [{"role": "system", "content": system}]
        for request in range(bench.options.requests):
            if stop.is_set():
                return
            question = bench.text(QUESTION_TOKENS, f"load {number} {request}")
            history.append({"role": "user", "content": question})
            label = f"client {number + 1} request {request + 1}"
            try:
                answer = peer.chat(history, tokens_of(bench), ignore_eos=True)
            except PeerError as error:
                with lock:
                    entry["errors"].append(f"{label}: {error.message}")
                return
            history.append({"role": "assistant", "content": answer.text})
            with lock:
                _note(bench, entry, peer, label, answer)

    threads = [threading.Thread(target=client, args=(n,), daemon=True) for n in range(bench.options.clients)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():  # the waits are short, so that Ctrl-C is heard
                thread.join(0.2)
    finally:
        stop.set()
        entry["seconds"] = time.perf_counter() - began
    if entry["errors"]:
        result["problems"].append(
            f"{peer.name}: {len(entry['errors'])} of {bench.options.clients} clients got an error; {entry['errors'][0]}"
        )


def _note(bench: Bench, entry: LoadPeer, peer: Peer, label: str, answer: Answer) -> None:
    bench.progress.say(f"{bench.model.name}: load, {label}, {peer.name}")
    bench.progress.advance(answer.evaluated, answer.n_answer)
    bench.room.record(peer.name, label, answer)
    entry["answers"].append(
        {
            "label": label,
            "n_tokens": answer.n_prompt,
            "reused": answer.reused,
            "evaluated": answer.evaluated,
            "answer_tokens": answer.n_answer,
            "source": answer.source,
            "ttft_ms": answer.ttft_ms,
            "total_ms": answer.total_ms,
        }
    )


def end(limits: Limits, result: LoadResult) -> None:
    for peer in result.get("peers", {}).values():
        answers = peer["answers"]
        if answers and peer.get("seconds"):
            peer["ttft_ms"] = percentiles([answer["ttft_ms"] for answer in answers])
            peer["answers_per_s"] = len(answers) / peer["seconds"]
            peer["tokens_per_s"] = sum(answer["answer_tokens"] for answer in answers) / peer["seconds"]
