"""Reads what nvidia-smi says about its cards."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class NvidiaCard:
    name: str
    memory: int | None  # in bytes; None where the card shares the machine's memory and has none of its own
    compute: str  # its compute capability, such as 9.0
    driver: str


def parse_nvidia_smi(text: str) -> list[NvidiaCard]:
    """Reads the answer to `--query-gpu=name,memory.total,compute_cap,driver_version --format=csv`."""
    rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text))]
    cards = []
    for row in rows[1:]:  # the first one is the header
        if len(row) != 4:
            continue
        memory = re.fullmatch(r"(\d+) MiB", row[1])
        cards.append(NvidiaCard(row[0], int(memory[1]) << 20 if memory else None, row[2], row[3]))
    return cards
