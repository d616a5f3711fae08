"""Measures what counting a mixture's experts costs: speed with tracking on, off, and of the unpatched server.

    python -m benchmarks.shapes 35b-a3b MODEL --layers 8
    python -m benchmarks.expert_cost MODEL [--upstream SERVER] [--server SERVER] [--rounds 9] [-- FLAG ...]

Tracking is turned on and off in one server between its answers, in turn with the other, so that the machine's moods
meet each of them. Every prompt is new. Two processes of one program can differ by a tenth, by where in memory their
weights came to lie: both servers are started anew after every few rounds, now the one first, now the other.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from rich.table import Table

from benchmarks import interrupt
from benchmarks.peers import Server
from benchmarks.text import words
from pyrun import console
from pyrun.home import find_home

OFF, ON, UPSTREAM = "tracking off", "tracking on", "upstream"
BLOCK = 5  # so many rounds are played between two starts


def main() -> None:
    interrupt.heed()
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a GGUF file of a mixture")
    parser.add_argument("--upstream", type=Path, help="an unpatched llama-server")
    parser.add_argument("--server", type=Path, default=find_home().server_binary("cpu"), help="ours")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--words", type=int, default=600, help="of a prompt")
    parser.add_argument("--answer", type=int, default=96, help="tokens of an answer")
    options = parser.parse_args(sys.argv[1:cut])

    flags = ["-c", "4096", "-np", "1", *sys.argv[cut + 1 :]]
    with tempfile.TemporaryDirectory() as folder:
        ours = Server("llama-run", options.server, options.model, flags, Path(folder) / "ours.log")
        peers = {OFF: ours, ON: ours}
        if options.upstream:
            peers[UPSTREAM] = Server(UPSTREAM, options.upstream, options.model, flags, Path(folder) / "theirs.log")
        speeds = _measure(peers, options.rounds, options.words, options.answer)

    table = Table(title=f"{options.model.name}: ratios to {OFF}, median and quartiles of {options.rounds} rounds")
    for column in ("", "prompt tokens/s", "ratio", "answer tokens/s", "ratio"):
        table.add_column(column, justify="right" if column else "left")
    for case, measured in speeds.items():
        row = [case]
        for kind, values in measured.items():
            ratios = [a / b for a, b in zip(values, speeds[OFF][kind], strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4)
            row += [f"{statistics.median(values):.1f}", f"{middle:.3f} ({low:.3f} to {high:.3f})"]
        table.add_row(*row)
    console.out.print(table)


def _measure(peers: dict[str, Server], rounds: int, n_words: int, answer: int) -> dict[str, dict[str, list[float]]]:
    speeds: dict[str, dict[str, list[float]]] = {case: {"prompt": [], "answer": []} for case in peers}
    cases = list(peers)
    servers = list({id(peer): peer for peer in peers.values()}.values())
    for start in range(0, rounds, BLOCK):
        servers.reverse()
        try:
            for server in servers:
                server.start()
            for turn in range(start, min(rounds, start + BLOCK)):
                for case in cases[turn % len(cases) :] + cases[: turn % len(cases)]:
                    peer = peers[case]
                    if case != UPSTREAM:
                        peer.post("/expert-tracking", {"enabled": case == ON})
                    peer.complete(f"Ready {turn}?", 4)  # the first graph after a change is built anew
                    told = peer.complete(words(n_words, f"experts {turn}"), answer, ignore_eos=True, cache_prompt=False)
                    speeds[case]["prompt"].append(told.timings["prompt_per_second"])
                    speeds[case]["answer"].append(told.timings["predicted_per_second"])
        finally:
            for server in servers:
                server.stop()
    return speeds


if __name__ == "__main__":
    main()
