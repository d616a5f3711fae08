"""While one slot restores a large state from a slow disk, does another go on decoding?

    python -m benchmarks.no_stall [MODEL] [--tokens 5200] [--disk 50]

The disk is slowed by slow_disk.c, preloaded into the server. Client A streams an answer; in its middle client B sends a
prompt whose state has to come from the disk. Printed are A's longest gap between two tokens before that and while B's
state is read (limit: 2 x the former + 20 ms), and the one in which that state is copied into the context and B's first
token is evaluated; beside it the same without a restore, because a token that looks back on thousands takes its time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import requests

from benchmarks import interrupt
from benchmarks.peers import Answer, Server
from benchmarks.text import words
from pyrun import console
from pyrun.home import find_home
from pyrun.models.default import ensure_default_model

SETTLE_TOKENS = 80


class Stream(threading.Thread):
    """Client A notes the moment of every token."""

    def __init__(self, peer: Server) -> None:
        super().__init__()
        self.peer = peer
        self.moments: list[float] = []
        self.done = threading.Event()

    def run(self) -> None:
        body = {"prompt": "Once upon a time", "n_predict": -1, "stream": True, "ignore_eos": True, "temperature": 0}
        with requests.post(f"{self.peer.url}/completion", json=body, stream=True, timeout=600) as response:
            for line in response.iter_lines():
                if line.startswith(b"data: ") and json.loads(line[6:]).get("content"):
                    self.moments.append(time.perf_counter())
                if self.done.is_set():
                    return


@dataclass
class Gaps:
    """How long client A waited between two tokens, in ms."""

    median: float
    usual: float  # the longest one in as long a time before
    reading: float  # the longest one while B's state was being read
    restored: float  # the one in which it was put into the context and B's token was evaluated
    from_slot: float  # the same without a restore: B asks again, and its slot still has everything


def longest(moments: list[float], begin: float, end: float) -> float:
    """Gives the longest of the gaps that lie at least in part between the two."""
    return max((b - a) * 1000 for a, b in itertools.pairwise(moments) if b > begin and a < end)


def measure(peer: Server, prompt: list[int], seconds: float) -> tuple[Gaps, Answer]:
    stream = Stream(peer)
    stream.start()
    while len(stream.moments) < SETTLE_TOKENS:
        time.sleep(0.01)
    settled = time.perf_counter()
    time.sleep(seconds)
    began = time.perf_counter()
    answer = peer.complete(prompt, 1)
    answered = time.perf_counter()
    time.sleep(0.3)
    again = time.perf_counter()
    peer.complete(prompt, 1)
    again_answered = time.perf_counter()
    time.sleep(0.3)
    stream.done.set()
    stream.join()
    moments = list(stream.moments)
    last_alone = max(m for m in moments if m < began + answer.timings["restore_ms"] / 1000)
    return Gaps(
        statistics.median((b - a) * 1000 for a, b in itertools.pairwise(moments)),
        longest(moments, settled, began),
        longest(moments, began, last_alone),
        longest(moments, last_alone, answered),
        longest(moments, again, again_answered),
    ), answer


def prompt_of(peer: Server, n_tokens: int) -> list[int]:
    text = words(n_tokens, "restart")
    tokens: list[int] = peer.post("/tokenize", {"content": text, "add_special": True})["tokens"]
    return tokens[:n_tokens]


def main() -> None:
    interrupt.heed()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, help="a GGUF file (default: the built-in model)")
    parser.add_argument("--tokens", type=int, default=5200)
    parser.add_argument("--disk", type=float, default=50, help="MB/s")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()

    home = find_home()
    model = options.model or ensure_default_model(home)
    with tempfile.TemporaryDirectory(dir=home.root) as name:
        folder = Path(name)
        shim = folder / "slow_disk.so"
        source = Path(__file__).with_name("slow_disk.c")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(shim), str(source), "-ldl"], check=True)
        flags = ["-c", "16384", "-np", "2"]
        log, cache = folder / "server.log", folder / "cache"
        peer = Server("llama-run", home.server_binary("cpu"), model, flags, log, cache=cache)
        peer.start()
        prompt = prompt_of(peer, options.tokens)
        peer.complete(prompt, 1)
        peer.stop()
        n_bytes = sum(file.stat().st_size for file in folder.joinpath("cache").rglob("*") if file.is_file())
        peer.environment = {"LD_PRELOAD": str(shim), "SLOW_DISK_BYTES_PER_S": str(options.disk * 1e6)}
        for _ in range(options.repeat):
            peer.start()
            gaps, answer = measure(peer, prompt, n_bytes / (options.disk * 1e6))
            peer.stop()
            limit = 2 * gaps.usual + 20
            console.out.print(
                f"{answer.reused} tokens restored in {answer.timings['restore_ms']:.0f} ms from {answer.source}. "
                f"A's gaps: median {gaps.median:.1f} ms, longest before {gaps.usual:.1f}, "
                f"while reading {gaps.reading:.1f} (limit {limit:.1f}), "
                f"with the copy and B's token {gaps.restored:.1f}, with B's token alone {gaps.from_slot:.1f}"
            )


if __name__ == "__main__":
    main()
