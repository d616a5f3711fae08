"""Random interleavings of all that clients and operators do: is every answer the one of a server without the cache?

    python -m tests.fault.interleave [--minutes 10] [--seed S] [--kinds dense,recurrent] [--ops 60] [--without kill]

Conversations that grow, branch, shrink and are edited, raw tokens, clients that hang up, several at once, several
users, slots saved and restored, removals, sleep, restarts and kill -9, on every kind of memory. Each round has a seed
of its own: it names how the server is started and what happens to it. The line that is printed with a failure makes it
fail again, as far as it does not depend on what ran at the same time; `--shrink` looks for the fewest operations that
do.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import random
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from backend import BINARY
from cache_server import CacheServer, launch, toy

import toys

from .operations import CONTEXT, NAMES, Operation, Setup, draw_operations, draw_setup
from .player import Fault, Player, Tally
from .referee import Referee

OPERATIONS = 60
SHRINK_SECONDS = 300
# The processor's flash attention rounds to 16 bits whatever the type of K/V, and the toys make up to 0.5 of it.
EXACT = ("-ctk", "f32", "-ctv", "f32", "-fa", "off")
CACHE_ONLY = ("users", "stranger", "remove")  # what a server without the cache does not know
COUNTS = ("answers", "ties", "wrong", "hung", "broken", "restarts", "kills", "removals", "sleeps", "cancels")


@dataclass(frozen=True)
class Failure:
    fault: Fault
    played: list[Operation]
    told: list[str]  # what came of them, in a few words

    def __str__(self) -> str:
        pairs = itertools.zip_longest(self.played, self.told, fillvalue="it fails")
        return "\n".join([*(line(n, *pair) for n, pair in enumerate(pairs, 1)), str(self.fault)])


def line(number: int, operation: Operation | str, told: str) -> str:
    return f"{number:3}. {operation}" + (f"\n       {told}" if told else "")


class Bench:
    """One kind of memory: its model, the server that knows what is right, and those that are tried."""

    def __init__(self, kind: str, binary: Path, folder: Path, strict: bool = False) -> None:
        self.kind = kind
        self.binary = binary
        self.folder = folder
        self.strict = strict
        self.tally = Tally()
        self.started: list[CacheServer] = []
        self.referee = Referee(self.start("--parallel", "1", "--ctx-size", str(CONTEXT), "--ctx-checkpoints", "0"))

    def start(self, *flags: str, cache: Path | None = None) -> CacheServer:
        output = self.folder / f"{self.kind}-{len(self.started)}.log"
        server = launch(self.binary, toy(self.kind), *EXACT, *flags, output=output, cache=cache)
        self.started.append(server)
        server.wait_until_healthy()
        return server

    def close(self) -> None:
        for server in self.started:
            if server.process.poll() is None:
                server.kill()

    def play(self, setup: Setup, operations: Iterable[Operation], verbose: bool = False) -> Failure | None:
        played: list[Operation] = []
        told: list[str] = []
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            flags = [*setup.flags, *(["--slot-save-path", name] if setup.files else [])]
            cache = Path(name, "kv") if setup.cached else None
            player = Player(lambda: self.start(*flags, cache=cache), setup, self.referee, self.strict)
            try:
                for operation in operations:
                    played.append(operation)
                    told.append(player.play(operation))
                    if verbose:
                        print(line(len(played), operation, told[-1]), flush=True)
                player.close()
            except Fault as fault:
                setattr(player.tally, fault.what, 1)
                return Failure(fault, played, told)
            finally:
                self.tally.add(player.tally)
                player.server.kill()
        return None

    def shrink(self, setup: Setup, failure: Failure, seconds: float = SHRINK_SECONDS) -> Failure:
        """Leaves out what need not be there, in ever smaller pieces."""
        before = self.tally
        ends = time.monotonic() + seconds
        size = len(failure.played) // 2
        while size and time.monotonic() < ends:
            at = 0
            while at < len(failure.played) and time.monotonic() < ends:
                self.tally = Tally()
                again = self.play(setup, [*failure.played[:at], *failure.played[at + size :]])
                if again and again.fault.what == failure.fault.what:
                    failure = again
                else:
                    at += size
            size //= 2
        self.tally = before
        return failure


def interleave(
    kinds: Sequence[str] = tuple(toys.MODELS),
    seed: int = 1,
    minutes: float = 0,
    ops: int = OPERATIONS,
    without: Collection[str] = (),
    server: Path = BINARY,
    control: bool = False,
    strict: bool = False,
    shrink: bool = False,
    verbose: bool = False,
) -> tuple[dict[str, Tally], list[str]]:
    """Plays a round on every kind, then one with the next seed, until the time is up: figures and failures by kind."""
    failures = []
    without = {*without, *(CACHE_ONLY if control else ())}
    ends = time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        benches = [stack.enter_context(contextlib.closing(Bench(kind, server, Path(name), strict))) for kind in kinds]
        for number in itertools.count(seed):
            for bench in benches:
                rng = random.Random(f"{number}/{bench.kind}")
                setup = replace(draw_setup(rng, toys.MODELS[bench.kind].memory, without), cached=not control)
                if verbose:
                    print(f"seed {number}, {bench.kind}: {' '.join(setup.flags)}", flush=True)
                operations = itertools.islice(draw_operations(rng, setup, without), ops)
                failure = bench.play(setup, operations, verbose)
                if failure:
                    again = f"--seed {number} --kinds {bench.kind} --ops {len(failure.played)} --minutes 0"
                    again += f" --without {','.join(sorted(without))}" if without else ""
                    again += " --control" * control + " --strict" * strict
                    shortest = bench.shrink(setup, failure) if shrink else failure
                    about = f"{bench.kind} fails with {' '.join((*EXACT, *setup.flags))}"
                    failures.append(f"{about}\n{shortest}\nagain: python -m tests.fault.interleave {again}")
                    print(f"\n{failures[-1]}\n", flush=True)
                if time.monotonic() > ends and number > seed:
                    break
            if time.monotonic() > ends:
                break
        return {bench.kind: bench.tally for bench in benches}, failures


def table(tallies: dict[str, Tally]) -> str:
    rows = [["kind", *COUNTS, "reused/evaluated", "rounding"]]
    for kind, tally in tallies.items():
        counts = [str(getattr(tally, name)) for name in COUNTS]
        rows.append([kind, *counts, f"{tally.reused}/{tally.evaluated}", f"{tally.apart:.5f}"])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def names_of(known: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    """Reads names with commas between them."""

    def names(text: str) -> tuple[str, ...]:
        chosen = tuple(text.split(","))
        for name in chosen:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name} is none of {', '.join(known)}")
        return chosen

    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10, help="0: one round on every kind")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--kinds", type=names_of(toys.MODELS), default=tuple(toys.MODELS))
    parser.add_argument("--ops", type=int, default=OPERATIONS, help="operations of a round")
    parser.add_argument("--without", type=names_of(NAMES), default=(), help=f"of {', '.join(NAMES)}")
    parser.add_argument("--server", type=Path, default=BINARY, help="the llama-server to try")
    parser.add_argument("--control", action="store_true", help="try a server without the cache: are faults upstream's?")
    parser.add_argument("--strict", action="store_true", help="what was cut off must be listed and removed, too")
    parser.add_argument("--shrink", action="store_true", help="look for the fewest operations that fail")
    parser.add_argument("--verbose", action="store_true", help="tell what happens")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    tallies, failures = interleave(**vars(options))
    print(table(tallies))
    raise SystemExit(bool(failures))


if __name__ == "__main__":
    main()
