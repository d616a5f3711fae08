"""Plays many clients at once, each with a conversation of its own, and notes what each of their requests took."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence

from benchmarks.bench import Bench
from benchmarks.peers import Answer, Message, Peer, PeerError
from benchmarks.records import CrowdAnswer, Rush

# A client is a generator: it gives the messages that it sends, and gets the answer.
Client = Generator[list[Message], Answer, None]
Asked = list[list[Message]]


def rush(bench: Bench, peer: Peer, clients: Sequence[Client], tokens: int, what: str, told: Rush) -> Asked:
    """Has all clients ask, each as soon as it is answered; fills in what becomes of that. Gives all that was asked."""
    asked: Asked = []
    stop = threading.Event()
    lock = threading.Lock()

    def play(number: int, client: Client) -> None:
        messages = next(client, None)
        request = 0
        while messages is not None and not stop.is_set():
            request += 1
            label = f"{what} {number + 1} request {request}"
            with lock:
                asked.append(list(messages))
            try:
                answer = peer.chat(messages, tokens, ignore_eos=True)
            except PeerError as error:
                with lock:
                    told["errors"].append(f"{label}: {error.message}")
                return
            try:
                with lock:
                    _note(bench, told, peer, label, answer)
                messages = _next(client, answer)
            except Exception as error:  # what a thread ends with, nobody else would hear of
                with lock:
                    told["errors"].append(f"{label}: {error}")
                return

    threads = [threading.Thread(target=play, args=each, daemon=True) for each in enumerate(clients)]
    began = time.perf_counter()
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():  # the waits are short, so that Ctrl-C is heard
                thread.join(0.05)
    finally:
        stop.set()
        told["seconds"] = time.perf_counter() - began
    return asked


def nothing_told() -> Rush:
    return {"answers": [], "errors": [], "seconds": 0.0}


def _next(client: Client, answer: Answer) -> list[Message] | None:
    try:
        return client.send(answer)
    except StopIteration:
        return None


def conversation(system: str, questions: Sequence[Callable[[], str]]) -> Client:
    """Asks one question after the other, each time with all that was said before."""
    history: list[Message] = [{"role": "system", "content": system}]
    for question in questions:
        history.append({"role": "user", "content": question()})
        answer = yield history
        history.append({"role": "assistant", "content": answer.text})


def _note(bench: Bench, told: Rush, peer: Peer, label: str, answer: Answer) -> None:
    bench.progress.say(f"{bench.model.name}: {bench.room.folder.name}, {label}, {peer.name}")
    bench.progress.advance(answer.evaluated, answer.n_answer)
    bench.room.record(peer.name, label, answer)
    row: CrowdAnswer = {
        "label": label,
        "n_tokens": answer.n_prompt,
        "reused": answer.reused,
        "evaluated": answer.evaluated,
        "answer_tokens": answer.n_answer,
        "source": answer.source,
        "ttft_ms": answer.ttft_ms,
        "total_ms": answer.total_ms,
    }
    told["answers"].append(row)
