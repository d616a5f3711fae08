"""`python -m toys`: write toy models into a folder, or list them."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from . import MODELS, ensure


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="toys", description="Write tiny deterministic GGUF models.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="models to write (default: all)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for the files")
    parser.add_argument("--list", action="store_true", help="list the models and write nothing")
    options = parser.parse_args(arguments)

    unknown = [name for name in options.names if name not in MODELS]
    if unknown:
        parser.error(f"no such model: {', '.join(unknown)} (known: {', '.join(MODELS)})")
    chosen = [MODELS[name] for name in options.names or MODELS]

    if options.list:
        listing = [(toy.name, toy.arch, toy.memory.value, toy.description) for toy in chosen]
        _print_table([("name", "arch", "memory", "description"), *listing])
        return 0
    if options.out is None:
        parser.error("--out DIR is needed (or --list)")

    rows = [("name", "arch", "memory", "size", "path")]
    for toy in chosen:
        path = ensure(toy.name, options.out)
        rows.append((toy.name, toy.arch, toy.memory.value, f"{path.stat().st_size / 1e6:.1f} MB", str(path)))
    _print_table(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
