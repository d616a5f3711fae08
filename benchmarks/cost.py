"""Measures what the cache costs while nothing is restored: speed and first byte, against the unpatched server.

    python -m benchmarks.cost --upstream SERVER [MODEL] [--server SERVER] [--rounds 7] [--starts 1] [-- FLAG ...]

All servers run at once and are asked in turn, so that the machine's moods meet each of them. Every prompt is new. Where
its memory comes to lie makes a process a few percent faster or slower than its equal for as long as it lives; --starts
shares the rounds among several processes of each.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from rich.table import Table

from benchmarks import interrupt
from benchmarks.alternation import in_turn, tell
from benchmarks.peers import Server
from benchmarks.text import words
from pyrun import console
from pyrun.home import find_home
from pyrun.models.default import ensure_default_model


def main() -> None:
    interrupt.heed()
    home = find_home()
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, help="a GGUF file (default: the built-in model)")
    parser.add_argument("--upstream", type=Path, required=True, help="an unpatched llama-server")
    parser.add_argument("--server", type=Path, default=home.server_binary("cpu"), help="ours")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--starts", type=int, default=1, help="of each server, which share the rounds")
    parser.add_argument("--words", type=int, default=600, help="of a prompt")
    parser.add_argument("--answer", type=int, default=96, help="tokens of an answer")
    options = parser.parse_args(sys.argv[1:cut])

    model = options.model or ensure_default_model(home)
    flags = ["-c", "4096", "-np", "1", *sys.argv[cut + 1 :]]
    with tempfile.TemporaryDirectory(dir=home.root) as name:
        folder = Path(name)
        peers = [
            Server("upstream", options.upstream, model, flags, folder / "upstream.log"),
            Server("cache off", options.server, model, flags, folder / "off.log"),
            Server("cache on", options.server, model, flags, folder / "on.log", cache=folder / "cache", settles=True),
        ]
        prefill: dict[str, list[float]] = {peer.name: [] for peer in peers}
        decode: dict[str, list[float]] = {peer.name: [] for peer in peers}
        first: dict[str, list[float]] = {peer.name: [] for peer in peers}
        try:
            for turn in range(options.rounds):
                start, rest = divmod(turn * options.starts, options.rounds)
                if rest < options.starts:
                    start_again(in_turn(peers, start))
                for peer in in_turn(peers, turn):
                    answer = peer.complete(words(options.words, f"cost {turn}"), options.answer, ignore_eos=True)
                    prefill[peer.name].append(answer.timings["prompt_per_second"])
                    decode[peer.name].append(answer.timings["predicted_per_second"])
                    if peer.has_cache:
                        peer.save_all()  # What is written later would slow the next one down.
                    short = (peer.complete(f"Number {turn}/{i}", 1).ttft_ms for i in range(5))
                    first[peer.name].append(min(short))
        finally:
            for peer in peers:
                peer.stop()

    table = Table(title=f"{model.name}: ratios to upstream, median of {options.rounds} rounds")
    for column in ("server", "prompt tokens/s", "ratio", "answer tokens/s", "ratio", "first byte ms", "more by ms"):
        table.add_column(column, justify="left" if column == "server" else "right")
    for peer in peers:
        row = [peer.name]
        for measured in (prefill, decode):
            ratios = [a / b for a, b in zip(measured[peer.name], measured["upstream"], strict=True)]
            row += [f"{statistics.median(measured[peer.name]):.1f}", f"{statistics.median(ratios):.3f}"]
        more = [a - b for a, b in zip(first[peer.name], first["upstream"], strict=True)]
        row += [f"{statistics.median(first[peer.name]):.1f}", f"{statistics.median(more):+.1f}"]
        table.add_row(*row)
    console.out.print(table)
    for what, measured in (("prompt", prefill), ("answer", decode)):
        tell(f"{what}, tokens/s", peers[1:], measured)  # The same program without the cache and with it.


def start_again(peers: list[Server]) -> None:
    for peer in peers:
        peer.stop()
        peer.start()
        peer.complete("Hello.", 1)


if __name__ == "__main__":
    main()
