"""Measures what the cache costs and saves on a device: the same program with the cache on and off, asked in turn.

    python -m benchmarks.beside MODEL [--what prompt,turn,gap,herd,swarm] [--rounds 7] [--server SERVER] [-- FLAG ...]

prompt  a new prompt and its answer: tokens per second of both
turn    a turn of an agent that finds everything in its slot: from the request to the last byte
gap     the longest pause of an answer while a prompt of 15,000 tokens is restored beside it, against its usual one
herd    eight clients at once with one new beginning
swarm   twelve agents of five turns in four slots

All servers run at once, so that the machine's moods meet each of them; what the cache still has to write is waited for
between the rounds. `--control` adds a second server without the cache, which tells how far apart equal ones are.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks import interrupt
from benchmarks.alternation import in_turn, tell
from benchmarks.crowd import Client, conversation
from benchmarks.no_stall import Stream
from benchmarks.peers import Answer, Server
from benchmarks.text import words
from pyrun import console
from pyrun.home import find_home

PROMPT_TOKENS = 5750
PROMPT_ANSWER = 128
TURN_PREFIX = 6000
TURN_TOKENS = 350
TURN_ANSWER = 8
RESTORED_TOKENS = 15_000
STREAM_TOKENS = 80  # an answer's pace is steady by then
HERD_CLIENTS = 8
HERD_PREFIX = 8000
HERD_OWN_TOKENS = 40
SWARM_AGENTS = 12
SWARM_TURNS = 5
SWARM_PREFIX = 6000
SWARM_TURN_TOKENS = 300
SWARM_ANSWER = 32
SLOTS = 4
CELLS = 131_072
PARTS = ("prompt", "turn", "gap", "herd", "swarm")


class Texts:
    """Text of so many tokens, as the model's vocabulary has them."""

    def __init__(self, peer: Server) -> None:
        sample = words(2000, "sample")
        self._tokens_of_word = len(peer.post("/tokenize", {"content": sample})["tokens"]) / 2000

    def __call__(self, n_tokens: int, seed: str) -> str:
        return words(round(n_tokens / self._tokens_of_word), seed)


def settle(peer: Server) -> None:
    if peer.has_cache:
        peer.save_all()


def prompt_and_answer(peers: Sequence[Server], rounds: int, text: Texts) -> None:
    prompt: dict[str, list[float]] = {peer.name: [] for peer in peers}
    answer: dict[str, list[float]] = {peer.name: [] for peer in peers}
    for turn in range(rounds):
        for peer in in_turn(peers, turn):
            said = peer.complete(text(PROMPT_TOKENS, f"prompt {turn}"), PROMPT_ANSWER, ignore_eos=True)
            prompt[peer.name].append(said.timings["prompt_per_second"])
            answer[peer.name].append(said.timings["predicted_per_second"])
            settle(peer)
    tell("prompt, tokens/s", peers, prompt)
    tell("answer, tokens/s", peers, answer)


def turns(peers: Sequence[Server], rounds: int, text: Texts) -> None:
    took: dict[str, list[float]] = {peer.name: [] for peer in peers}
    system = text(TURN_PREFIX, "turn")
    clients: dict[str, Client] = {}
    asked = {}
    for peer in peers:
        questions = [partial(text, TURN_TOKENS, f"turn {turn}") for turn in range(rounds + 1)]
        clients[peer.name] = conversation(system, questions)
        asked[peer.name] = next(clients[peer.name])
    for turn in range(rounds + 1):
        for peer in in_turn(peers, turn):
            said = peer.chat(asked[peer.name], TURN_ANSWER, ignore_eos=True)
            settle(peer)
            if turn > 0:  # the first one evaluates everything
                took[peer.name].append(said.total_ms)
            if turn < rounds:
                asked[peer.name] = clients[peer.name].send(said)
    tell("turn, ms", peers, took)


def gap_beside(peer: Server, ask: Callable[[], Answer]) -> tuple[float, float, Answer]:
    """The usual gap of an answer, and the longest one while something else is asked, in ms."""
    stream = Stream(peer)
    stream.start()
    while len(stream.moments) < STREAM_TOKENS:
        time.sleep(0.01)
    began = time.perf_counter()
    said = ask()
    ended = time.perf_counter()
    time.sleep(0.1)
    stream.done.set()
    stream.join()
    gaps = [(a, b, (b - a) * 1000) for a, b in itertools.pairwise(stream.moments)]
    usual = statistics.median(ms for _, b, ms in gaps[STREAM_TOKENS // 2 :] if b < began)
    return usual, max(ms for a, b, ms in gaps if b > began and a < ended), said


def gap(peers: Sequence[Server], rounds: int) -> None:
    """Without the cache, the prompt is as long as what is left to evaluate behind a restore: nothing can be faster."""
    for peer in peers:
        prompt = peer.post("/tokenize", {"content": words(RESTORED_TOKENS, "gap")})["tokens"][:RESTORED_TOKENS]
        if peer.has_cache:
            peer.complete(prompt, 1)
            settle(peer)
        usual, longest, restored = [], [], []
        for turn in range(rounds):
            for other in range(SLOTS):  # They take the slot that still holds the prompt.
                peer.complete(f"{turn} {other} {words(8, other)}", 1)
            asked = prompt if peer.has_cache else prompt[4 * turn : 4 * turn + 4]
            found = gap_beside(peer, partial(peer.complete, asked, 1))
            usual.append(found[0])
            longest.append(found[1])
            restored.append(found[2].reused)
        limit = 3 * statistics.median(usual) + 10
        console.out.print(
            f"gap, ms, {peer.name}: " + " ".join(f"{value:.1f}" for value in longest) + f" | median "
            f"{statistics.median(longest):.1f}, limit {limit:.1f}, usual {statistics.median(usual):.1f}, "
            f"restored {restored}",
            soft_wrap=True,
        )


def rush(peer: Server, clients: Sequence[Client], tokens: int) -> tuple[float, list[Answer]]:
    """All clients ask, each as soon as it is answered. Gives the seconds that took, and the answers."""
    answers: list[Answer] = []
    lock = threading.Lock()

    def play(client: Client) -> None:
        messages = next(client, None)
        while messages is not None:
            said = peer.chat(messages, tokens, ignore_eos=True)
            with lock:
                answers.append(said)
            try:
                messages = client.send(said)
            except StopIteration:
                messages = None

    began = time.perf_counter()
    with ThreadPoolExecutor(len(clients)) as pool:
        for done in [pool.submit(play, client) for client in clients]:
            done.result()
    return time.perf_counter() - began, answers


def crowd(what: str, peers: Sequence[Server], rounds: int, cast: Callable[[int], list[Client]], tokens: int) -> None:
    seconds: dict[str, list[float]] = {peer.name: [] for peer in peers}
    p95: dict[str, list[float]] = {peer.name: [] for peer in peers}
    evaluated: dict[str, list[float]] = {peer.name: [] for peer in peers}
    for turn in range(rounds):
        for peer in in_turn(peers, turn):
            took, answers = rush(peer, cast(turn), tokens)
            settle(peer)
            waits = sorted(said.total_ms / 1000 for said in answers)
            seconds[peer.name].append(took)
            p95[peer.name].append(waits[math.ceil(0.95 * len(waits)) - 1])
            evaluated[peer.name].append(sum(said.evaluated for said in answers))
    tell(f"{what}, s", peers, seconds, 2)
    tell(f"{what}, p95 of an answer, s", peers, p95, 2)
    tell(f"{what}, tokens evaluated", peers, evaluated, 0)


def herd_cast(text: Texts, turn: int) -> list[Client]:
    system = text(HERD_PREFIX, f"herd {turn}")
    return [
        conversation(system, [partial(text, HERD_OWN_TOKENS, f"herd {turn} {client}")])
        for client in range(HERD_CLIENTS)
    ]


def swarm_cast(text: Texts, turn: int) -> list[Client]:
    system = text(SWARM_PREFIX, f"swarm {turn}")
    return [
        conversation(
            system, [partial(text, SWARM_TURN_TOKENS, f"swarm {turn} {agent} {k}") for k in range(SWARM_TURNS)]
        )
        for agent in range(SWARM_AGENTS)
    ]


def play(part: str, peers: Sequence[Server], rounds: int) -> None:
    text = Texts(peers[0])
    if part == "prompt":
        prompt_and_answer(peers, rounds, text)
    elif part == "turn":
        turns(peers, rounds, text)
    elif part == "gap":
        gap(peers, rounds)
    elif part == "herd":
        crowd("herd", peers, rounds, partial(herd_cast, text), TURN_ANSWER)
    else:
        crowd("swarm", peers, rounds, partial(swarm_cast, text), SWARM_ANSWER)


def main() -> None:
    interrupt.heed()
    home = find_home()
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--what", default=",".join(PARTS), help="parts, with commas (default: all)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--server", type=Path, default=home.server_binary("cuda"))
    parser.add_argument("--control", action="store_true", help="a second server without the cache")
    options = parser.parse_args(sys.argv[1:cut])
    parts = options.what.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--what: {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")

    with tempfile.TemporaryDirectory(dir=home.root) as name:
        folder = Path(name)
        for slots, some in itertools.groupby(parts, lambda part: HERD_CLIENTS if part == "herd" else SLOTS):
            flags = ["-c", str(CELLS), "-np", str(slots), "--kv-unified", *sys.argv[cut + 1 :]]
            server = partial(Server, program=options.server, model=options.model, flags=flags)
            peers = [
                server("off", log=folder / "off.log"),
                server("on", log=folder / "on.log", cache=folder / f"cache-{slots}", settles=True),
                *([server("off again", log=folder / "control.log")] if options.control else []),
            ]
            try:
                for peer in peers:
                    peer.start()
                    peer.warm_up()
                for part in some:
                    play(part, peers, options.rounds)
            finally:
                for peer in peers:
                    peer.stop()


if __name__ == "__main__":
    main()
