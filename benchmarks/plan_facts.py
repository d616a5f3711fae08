"""Holds what POST /cache/plan says of a request against what then happens: python -m benchmarks.plan_facts MODEL.gguf

Sixty requests: new prompts, a slot's next turn, what is in RAM, what is on disk after a restart, and prefixes that
several share. The first twenty teach. Each is planned, then streamed; the time to its first token is the fact.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import requests

from benchmarks import interrupt
from pyrun.home import find_home
from pyrun.server.supervisor import end_with_parent
from toys.corpus import TEXT

LEARNT = 20
WORDS = TEXT.split()


def words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(count))


class Served:
    def __init__(self, binary: Path, model: Path, cache: Path, flags: list[str]) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = [str(binary), "--model", str(model), "--port", str(port), "--no-webui", "--cache-ssd", str(cache)]
        self.process = subprocess.Popen(
            [*command, *flags],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=end_with_parent(os.getpid()),
        )
        while True:
            try:
                if requests.get(f"{self.url}/health", timeout=2).status_code == 200:
                    return
            except requests.ConnectionError:
                pass
            if self.process.poll() is not None:
                sys.exit("the server did not start")
            time.sleep(0.2)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()

    def plan(self, body: dict[str, Any]) -> dict[str, Any]:
        return dict(requests.post(f"{self.url}/cache/plan", json=body, timeout=60).json())

    def ask(self, body: dict[str, Any]) -> tuple[float, str]:
        """Milliseconds to the first token, and the answer."""
        started = time.monotonic()
        first, text = 0.0, ""
        with requests.post(
            f"{self.url}/v1/chat/completions", json=body | {"stream": True}, stream=True, timeout=600
        ) as r:
            for line in r.iter_lines():
                if not line.startswith(b"data: {"):
                    continue
                first = first or 1000 * (time.monotonic() - started)
                text += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
        return first, text

    def flush(self) -> int:
        """Gives how many tokens were evaluated, once all that was answered has been counted and written."""
        told = requests.post(f"{self.url}/cache/flush", json={}, timeout=60).json()
        return int(told["requests"]["tokens_evaluated"])


def main() -> None:
    interrupt.heed()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--server", type=Path, default=find_home().server_binary("cpu"))
    parser.add_argument("--requests", type=int, default=60)
    options = parser.parse_args()
    rng = random.Random(7)
    flags = ["--parallel", "2", "--ctx-size", "16384", "--no-kv-unified", "--no-warmup", "--threads", "1"]
    facts: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        server = Served(options.server, options.model, Path(folder) / "kv", flags)
        talks: list[list[dict[str, str]]] = []
        system = {"role": "system", "content": words(rng, 400)}
        for number in range(options.requests):
            if number == options.requests // 2:
                server.stop()
                server = Served(options.server, options.model, Path(folder) / "kv", flags)
            if number % 3 == 0 or not talks:
                talks.append([system] if number % 2 else [])
                talk = talks[-1]
            else:
                talk = rng.choice(talks[-6:])
            talk.append({"role": "user", "content": words(rng, rng.choice([8, 40, 200, 500]))})
            body = {"messages": talk, "max_tokens": 4, "ignore_eos": True, "temperature": 0}
            before = server.flush()
            said = server.plan(body)
            if server.flush() != before:
                sys.exit("a plan has evaluated something")
            took, answer = server.ask(body)
            talk.append({"role": "assistant", "content": answer})
            facts.append((said["first_token_ms"] if said["measured"] else 0.0, took))
            times = f"said {said['first_token_ms']:8.1f} ms, took {took:8.1f}"
            print(f"{number:3} {said['source']:5} {said['evaluated']:5} tokens: {times}", flush=True)
        server.stop()
    compared = [(said, took) for said, took in facts[LEARNT:] if said > 0]
    good = sum(said / 1.5 <= took <= said * 1.5 for said, took in compared)
    print(f"{good} of {len(compared)} within a factor of 1.5 after the first {LEARNT}")


if __name__ == "__main__":
    main()
