"""Compares a restore through the store with upstream's restore of the whole state, in one process and one run.

    ninja -C llama.cpp/build/cpu state_test
    python -m benchmarks.state_restore [MODEL] [--tokens 5000] [--runs 3]

It prints milliseconds and ratios; both from RAM, and both from files in a warm page cache. The last column is the
stricter one: it holds ours, from wherever, against upstream's from RAM. Where its memory comes to lie makes a process
up to a third faster or slower, so several are started.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
from pathlib import Path

from rich.table import Table

from pyrun import console
from pyrun.home import find_home
from pyrun.models.default import ensure_default_model


def measure(program: Path, model: Path, tokens: int, flash: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        command = [str(program), "bench", str(model), folder, "-n", str(tokens), "-p", "256", "-f", flash]
        result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    values: dict[str, float] = json.loads(result.stdout)
    return values


def middle(runs: list[dict[str, float]], ours: str, upstream: str) -> str:
    ratios = sorted(run[ours] / run[upstream] for run in runs)
    return f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, help="a GGUF file (default: the built-in model)")
    parser.add_argument("--tokens", type=int, default=5000)
    parser.add_argument("--runs", type=int, default=3, help="processes")
    options = parser.parse_args()

    home = find_home()
    program = home.server_binary("cpu").with_name("state_test")
    model = options.model or ensure_default_model(home)
    how = f"best of 15 rounds, median of {options.runs} processes"
    table = Table(title=f"restoring {options.tokens} tokens of {model.name}, ms: {how}")
    for column in ("flash attention", "MB", "from", "upstream", "llama-run", "ratio", "to upstream's RAM"):
        table.add_column(column, justify="left" if column in ("flash attention", "from") else "right")
    for flash in ("on", "off"):
        runs = [measure(program, model, options.tokens, flash) for _ in range(options.runs)]
        for source, upstream, ours in (("RAM", "upstream_ram_ms", "ram_ms"), ("files", "upstream_file_ms", "files_ms")):
            table.add_row(
                flash,
                f"{runs[0]['bytes'] / 1e6:.0f}",
                source,
                *(f"{statistics.median(run[kind] for run in runs):.1f}" for kind in (upstream, ours)),
                middle(runs, ours, upstream),
                middle(runs, ours, "upstream_ram_ms"),
            )
    console.out.print(table)


if __name__ == "__main__":
    main()
