"""While one slot restores a large state from a slow disk, does another go on decoding?

    python -m benchmarks.no_stall [MODEL] [--tokens 5200] [--disk 50]

The disk is slowed by slow_disk.c, preloaded into the server. Client A streams an answer; in its middle client B sends a
prompt whose state has to come from the disk. Printed: A's usual gap between two tokens, its longest gap from B's
request to B's first token, and the limit of 2 x usual + 20 ms.
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
from pathlib import Path

import requests

from benchmarks.peer import Answer, Peer, free_port
from benchmarks.restart import prompt_of
from pyrun import console
from pyrun.home import find_home
from pyrun.models.default import ensure_default_model

SETTLE_TOKENS = 80


class Stream(threading.Thread):
    """Client A: the moment of every token."""

    def __init__(self, peer: Peer) -> None:
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


def gaps(moments: list[float]) -> list[float]:
    return [(b - a) * 1000 for a, b in itertools.pairwise(moments)]


def measure(peer: Peer, prompt: list[int]) -> tuple[float, float, Answer]:
    stream = Stream(peer)
    stream.start()
    while len(stream.moments) < SETTLE_TOKENS:
        time.sleep(0.01)
    began = time.perf_counter()
    answer = peer.complete(prompt, 1)
    time.sleep(0.2)
    stream.done.set()
    stream.join()
    moments = list(stream.moments)
    usual = statistics.median(gaps([m for m in moments if m < began][SETTLE_TOKENS // 4 :]))
    first_after = next(i for i, m in enumerate(moments) if m >= began)
    return usual, max(gaps(moments[first_after - 1 :])), answer


def main() -> None:
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
        flags = ["-c", "16384", "-np", "2", "--cache-ssd", f"{folder}/cache"]
        peer = Peer("llama-run", home.server_binary("cpu"), model, flags, free_port(), folder / "server.log")
        peer.start()
        prompt = prompt_of(peer, options.tokens)
        peer.complete(prompt, 1)
        peer.stop()
        peer.environment = {"LD_PRELOAD": str(shim), "SLOW_DISK_BYTES_PER_S": str(options.disk * 1e6)}
        for _ in range(options.repeat):
            peer.start()
            usual, longest, answer = measure(peer, prompt)
            peer.stop()
            verdict = "within" if longest <= 2 * usual + 20 else "ABOVE"
            console.out.print(
                f"restore of {answer.reused} tokens took {answer.timings['restore_ms']:.0f} ms from {answer.source}; "
                f"usual gap {usual:.1f} ms, longest {longest:.1f} ms, {verdict} {2 * usual + 20:.1f} ms"
            )


if __name__ == "__main__":
    main()
