"""Many clients, small budgets, and kill -9 again and again: is every answer still the right one?

    python -m tests.fault.soak MODEL [--minutes 10] [--conversations 200] [--clients 8] [--slots 4] [--kill-every 30]

Every conversation is first played alone on a server without the cache: those answers are right. Then clients play them
at random against a server with the cache, whose RAM holds a twentieth of them and whose disk half, while it is
killed and started again. Wrong is an answer that differs; where the first differing token was a tie within rounding,
it is counted apart, and `--control` shows how many there are without the cache and without kills. The disk budget is
measured from outside while it runs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests

from benchmarks.peers import Message, Server
from benchmarks.text import words
from pyrun.home import find_home

ANSWER_TOKENS = 12
# Log-probability. A batch that other slots share, or that begins elsewhere, rounds differently: without the cache
# (--control) answers of the toy models drift by up to 0.05. A wrong state drifts by whole units.
TIE = 0.1


@dataclass(frozen=True)
class Reply:
    text: str
    tokens: tuple[str, ...]
    logprobs: tuple[float, ...]
    gaps: tuple[float, ...]  # between the best and the second-best token


@dataclass
class Script:
    """A conversation with the answers it must get."""

    questions: list[str]
    system: str
    replies: list[Reply] = field(default_factory=list)

    def messages(self, turn: int) -> list[Message]:
        out = [{"role": "system", "content": self.system}]
        for i in range(turn + 1):
            out.append({"role": "user", "content": self.questions[i]})
            if i < turn:
                out.append({"role": "assistant", "content": self.replies[i].text})
        return out


def make_scripts(count: int) -> list[Script]:
    rng = random.Random(count)
    scripts = []
    for i in range(count):
        system = words(40 + 20 * (i % 3), f"system {i % 7}")  # some share theirs
        questions = [words(rng.randint(15, 60), f"{i}/{turn}") for turn in range(rng.randint(3, 8))]
        scripts.append(Script(questions, system))
    return scripts


def ask(url: str, messages: list[Message]) -> tuple[Reply, dict[str, Any]]:
    body = {"messages": messages, "max_tokens": ANSWER_TOKENS, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    response = requests.post(f"{url}/v1/chat/completions", json=body, timeout=120)
    response.raise_for_status()
    answer = response.json()
    choice = answer["choices"][0]
    content = choice["logprobs"]["content"]
    gaps = tuple(c["top_logprobs"][0]["logprob"] - c["top_logprobs"][1]["logprob"] for c in content)
    return Reply(
        choice["message"]["content"], tuple(c["token"] for c in content), tuple(c["logprob"] for c in content), gaps
    ), answer["timings"]


@dataclass(frozen=True)
class Difference:
    """Where two answers part, and how far apart the model's opinions were."""

    at: int
    gap: float  # between the two best tokens there
    drift: float  # of log-probabilities before

    @property
    def is_tie(self) -> bool:
        return self.gap < TIE and self.drift < TIE


def difference(expected: Reply, got: Reply) -> Difference:
    pairs = zip(expected.tokens, got.tokens, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(expected.tokens), len(got.tokens)) - 1)
    drift = max((abs(a - b) for a, b in zip(expected.logprobs[:at], got.logprobs[:at], strict=True)), default=0.0)
    return Difference(at, expected.gaps[at], drift)


@dataclass
class Tally:
    mu: threading.Lock = field(default_factory=threading.Lock)
    requests: int = 0
    refused: int = 0
    ties: int = 0
    kills: int = 0
    reused: int = 0
    evaluated: int = 0
    peak_disk: int = 0
    peak_ram: int = 0
    sources: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def problem(self, text: str) -> None:
        with self.mu:
            self.problems.append(text)


def disk_usage(folder: Path) -> int:
    """Bytes of files and folders, as the disk counts them.

    While one look goes from file to file, some vanish and others come: it may see both a file and what took its place.
    What two looks saw was there at one moment, between them.
    """
    before, after = look(folder), look(folder)
    total = 0
    for inode in before.keys() & after.keys():
        (path, modified, size), (later_path, later_modified, later_size) = before[inode], after[inode]
        if path == later_path or modified == later_modified:  # renamed, or still there; else the number's next owner
            total += min(size, later_size)
    return total


def look(folder: Path) -> dict[int, tuple[Path, int, int]]:
    seen = {}
    for parent, _, files in os.walk(folder):
        for path in (Path(parent), *(Path(parent, name) for name in files)):
            with contextlib.suppress(FileNotFoundError):
                about = path.lstat()
                seen[about.st_ino] = path, about.st_mtime_ns, about.st_blocks * 512
    return seen


def client(number: int, url: str, scripts: list[Script], tally: Tally, stop: threading.Event) -> None:
    rng = random.Random(number)
    while not stop.is_set():
        script = rng.choice(scripts)
        for turn in range(rng.randint(0, 1), len(script.questions)):
            while not stop.is_set():
                try:
                    reply, timings = ask(url, script.messages(turn))
                except requests.ConnectionError:  # killed: refused, or cut off in the middle
                    with tally.mu:
                        tally.refused += 1
                    time.sleep(0.2)
                    continue
                except requests.HTTPError as error:
                    if error.response.status_code == 503:  # the model is loading
                        time.sleep(0.2)
                        continue
                    tally.problem(f"HTTP {error.response.status_code}: {error.response.text[:300]}")
                    break
                except (requests.RequestException, json.JSONDecodeError) as error:
                    tally.problem(repr(error))
                    break
                expected = script.replies[turn]
                with tally.mu:
                    tally.requests += 1
                    tally.reused += timings["cache_n"]
                    tally.evaluated += timings["prompt_n"]
                    source = timings.get("cache_source", "upstream")
                    tally.sources[source] = tally.sources.get(source, 0) + 1
                if reply.text != expected.text:
                    found = difference(expected, reply)
                    if found.is_tie:
                        with tally.mu:
                            tally.ties += 1
                    else:
                        tally.problem(f"wrong: {reply.text!r} is not {expected.text!r}: {found}; {timings}")
                break
            if stop.is_set():
                return


def watch(url: str, folder: Path, disk_limit: int, tally: Tally, stop: threading.Event) -> None:
    while not stop.wait(0.3):
        disk = disk_usage(folder)
        tally.peak_disk = max(tally.peak_disk, disk)
        if disk > disk_limit:
            tally.problem(f"{disk} bytes on disk, {disk_limit} allowed")
        try:
            state = requests.get(f"{url}/cache", timeout=5).json()["state"]
        except (requests.RequestException, KeyError, json.JSONDecodeError):
            continue
        tally.peak_ram = max(tally.peak_ram, state["ram_bytes"])
        if state["ram_bytes"] > state["ram_limit"]:
            tally.problem(f"{state['ram_bytes']} bytes in RAM, {state['ram_limit']} allowed")


def prepare(program: Path, model: Path, scripts: list[Script], folder: Path) -> int:
    """Plays every conversation twice: without the cache for the right answers, with it for the bytes that all take."""
    flags = ["-c", "8192", "-np", "1"]
    plain = Server("plain", program, model, flags, folder / "plain.log")
    cache = folder / "all"
    cached = Server("cached", program, model, flags, folder / "all.log", cache=cache)
    try:
        plain.start()
        cached.start()
        for script in scripts:
            for turn in range(len(script.questions)):
                script.replies.append(ask(plain.url, script.messages(turn))[0])
                ask(cached.url, script.messages(turn))
    finally:
        plain.stop()
        cached.stop()
    return disk_usage(cache)


def soak(
    model: Path,
    minutes: float,
    conversations: int = 200,
    clients: int = 8,
    slots: int = 4,
    kill_every: float = 30,
    control: bool = False,
) -> Tally:
    program = find_home().server_binary("cpu")
    tally = Tally()
    scripts = make_scripts(conversations)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        everything = prepare(program, model, scripts, folder)
        disk, ram = everything // 2, everything // 20
        print(f"all {conversations} conversations take {everything} bytes; disk may take {disk}, RAM {ram}", flush=True)
        cache = ["--cache-ssd", str(folder / "cache"), "--cache-ssd-max-size", str(disk), "--cache-ssd-ram", str(ram)]
        flags = ["-c", str(4096 * slots), "-np", str(slots), *([] if control else cache)]
        peer = Server("soaked", program, model, flags, folder / "soak.log")
        peer.start()
        stop = threading.Event()
        threads = [
            threading.Thread(target=client, args=(i, peer.url, scripts, tally, stop)) for i in range(clients)
        ] + [threading.Thread(target=watch, args=(peer.url, folder / "cache", disk, tally, stop))]
        for thread in threads:
            thread.start()
        ends = time.monotonic() + minutes * 60
        try:
            while time.monotonic() < ends and len(tally.problems) < 20:
                time.sleep(min(kill_every, max(0.0, ends - time.monotonic())))
                if control:
                    continue
                if peer.process is None or peer.process.poll() is not None:
                    tally.problem(f"the server ended by itself:\n{peer.log.read_text()[-3000:]}")
                    break
                peer.stop(signal.SIGKILL)
                tally.kills += 1
                peer.start()
        finally:
            stop.set()
            for thread in threads:
                thread.join()
            peer.stop()
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--conversations", type=int, default=200)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--kill-every", type=float, default=30)
    parser.add_argument("--control", action="store_true", help="no cache and no kills")
    tally = soak(**vars(parser.parse_args()))
    print(
        f"{tally.requests} answers, {tally.kills} kills, {tally.refused} connections refused or cut, "
        f"{tally.ties} ties, {len(tally.problems)} problems\n"
        f"tokens reused {tally.reused}, evaluated {tally.evaluated}; from {tally.sources}\n"
        f"peak on disk {tally.peak_disk}, in RAM {tally.peak_ram}"
    )
    for problem in tally.problems:
        print(problem)
    raise SystemExit(bool(tally.problems))


if __name__ == "__main__":
    main()
