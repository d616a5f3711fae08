"""How long a search of the memory takes, while messages come in beside it.

    python -m benchmarks.memory_search [--messages 100000] [--queries 300]

Fills a new memory with messages of words as frequent as in prose, then asks for rare words, common ones, sentences and
words that are not there, each in a newly opened memory, as the tool server does it. Another process archives meanwhile.
"""

from __future__ import annotations

import argparse
import bisect
import itertools
import multiprocessing
import random
import statistics
import tempfile
import time
from multiprocessing.synchronize import Event
from pathlib import Path

from benchmarks import interrupt
from pyrun import console
from pyrun.memory.intake import take_in
from pyrun.memory.recall import UserMemory
from pyrun.memory.spool import Record, write_spool
from pyrun.memory.store import Memory, key_of_user

VOCABULARY = 30_000
PER_FILE = 2_000
WORDS_PER_MESSAGE = 60


class Prose:
    """Words by Zipf's law: the n-th is 1/n as frequent as the first."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.weights = list(itertools.accumulate(1 / n for n in range(1, VOCABULARY + 1)))

    def word(self) -> str:
        return f"w{bisect.bisect(self.weights, self.chance.random() * self.weights[-1])}"

    def text(self, n_words: int) -> str:
        return " ".join(self.word() for _ in range(n_words))


def fill(folder: Path, n_messages: int, first: int, prose: Prose) -> None:
    for start in range(first, first + n_messages, PER_FILE):
        numbers = range(start, min(start + PER_FILE, first + n_messages))
        records = [Record(n, {"role": "user", "content": prose.text(WORDS_PER_MESSAGE)}) for n in numbers]
        write_spool(folder / "spool", key_of_user(""), f"{start:016x}", records)
        with Memory(folder) as memory:
            take_in(memory)


def load(folder: Path, stop: Event) -> None:
    """Four messages at a time, as when a cut drops them, until it is told to stop."""
    prose = Prose(2)
    for start in itertools.count(10**9, 4):
        if stop.wait(0.05):
            return
        fill(folder, 4, start, prose)


def queries(n: int) -> list[tuple[str, str]]:
    prose = Prose(3)
    out = []
    for number in range(n):
        kind = ("rare", "common", "sentence", "missing")[number % 4]
        if kind == "rare":
            text = f"w{prose.chance.randrange(500, 5000)} w{prose.chance.randrange(500, 5000)}"
        elif kind == "common":
            text = f"w{prose.chance.randrange(0, 20)}"
        elif kind == "sentence":
            text = prose.text(8)
        else:
            text = f"absent{number}"
        out.append((kind, text))
    return out


def main() -> None:
    interrupt.heed()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=300)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        started = time.monotonic()
        fill(folder, options.messages, 0, Prose(1))
        with Memory(folder) as memory:
            size = memory.used_bytes()
        console.say(f"{options.messages:,} messages in {time.monotonic() - started:.0f} s, {console.size(size)}")
        stop = multiprocessing.Event()
        beside = multiprocessing.Process(target=load, args=(folder, stop))
        beside.start()
        times: dict[str, list[tuple[float, float]]] = {}
        try:
            for kind, text in queries(options.queries):
                begin, begin_cpu = time.perf_counter(), time.process_time()
                with Memory(folder) as memory:
                    take_in(memory)
                    UserMemory(memory, "").search(text)
                seconds = (time.perf_counter() - begin, time.process_time() - begin_cpu)
                times.setdefault(kind, []).append((seconds[0] * 1000, seconds[1] * 1000))
        finally:
            stop.set()
            beside.join()
    everything = [one for kind in times.values() for one in kind]
    for kind, values in (*times.items(), ("all", everything)):
        waited, worked = zip(*values, strict=True)
        worst = statistics.quantiles(waited, n=20)[-1]
        figures = f"median {statistics.median(waited):6.1f} ms, {statistics.median(worked):5.1f} ms of them computing"
        print(f"{kind:9} {figures}; 95 % within {worst:6.1f} ms; {len(values)} searches")


if __name__ == "__main__":
    main()
