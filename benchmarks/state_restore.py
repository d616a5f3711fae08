"""Restoring a sequence through the store against upstream's restore of the whole state, in one process and one run.

    ninja -C llama.cpp/build/cpu state_test
    python -m benchmarks.state_restore [MODEL] [--tokens 5000]

Prints milliseconds and ratios; both from RAM, and both from files in a warm page cache. The last column is the stricter
one: ours, from wherever, against upstream's from RAM.
"""

from __future__ import annotations

import argparse
import json
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, help="a GGUF file (default: the built-in model)")
    parser.add_argument("--tokens", type=int, default=5000)
    options = parser.parse_args()

    home = find_home()
    program = home.server_binary("cpu").with_name("state_test")
    model = options.model or ensure_default_model(home)
    table = Table(title=f"restoring {options.tokens} tokens of {model.name}, best of 15 rounds, ms")
    for column in ("flash attention", "MB", "from", "upstream", "llama-run", "ratio", "to upstream's RAM"):
        table.add_column(column, justify="left" if column in ("flash attention", "from") else "right")
    for flash in ("on", "off"):
        values = measure(program, model, options.tokens, flash)
        for source, upstream, ours in (
            ("RAM", values["upstream_ram_ms"], values["ram_ms"]),
            ("files", values["upstream_file_ms"], values["files_ms"]),
        ):
            ratios = (f"{ours / upstream:.2f}", f"{ours / values['upstream_ram_ms']:.2f}")
            table.add_row(flash, f"{values['bytes'] / 1e6:.0f}", source, f"{upstream:.1f}", f"{ours:.1f}", *ratios)
    console.out.print(table)


if __name__ == "__main__":
    main()
