"""Reads how worn the disk under a folder is, from what smartctl or nvme say of it; most systems let only root ask.

Drives tell what was ever written to them and what share of their rated endurance that is; the rated total follows.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SYS = Path("/sys")
MOUNTS = Path("/proc/self/mountinfo")
DATA_UNIT = 512_000  # bytes, in NVMe's log
ANSWER_SECONDS = 20


@dataclass(frozen=True)
class Wear:
    written: int  # bytes, ever
    rated: int  # bytes

    def body(self) -> dict[str, object]:
        """What POST /cache/power takes beside the power."""
        return {"disk_written": self.written, "disk_rated": self.rated}


def read_wear(folder: Path) -> Wear | None:
    """None where nothing is told: no such program, no right to ask, another kind of disk, or one that is nearly new."""
    name = disk_of(folder)
    if name is None:
        return None
    for command in (
        ["smartctl", "--json", "--attributes", f"/dev/{name}"],
        ["nvme", "smart-log", "--output-format=json", f"/dev/{name}"],
    ):
        if wear := wear_of(_ask(command)):
            return wear
    return None


def wear_of(told: dict[str, Any]) -> Wear | None:
    """Of the answer of either program. Below one percent the drive does not say what it is rated for."""
    log = told.get("nvme_smart_health_information_log", told)
    units = log.get("data_units_written")
    percent = log.get("percentage_used", log.get("percent_used"))
    if not isinstance(units, int) or not isinstance(percent, int) or percent < 1:
        return None
    return Wear(written=units * DATA_UNIT, rated=units * DATA_UNIT * 100 // percent)


def disk_of(folder: Path, sys: Path = SYS, mounts: Path = MOUNTS) -> str | None:
    """The disk's name in /dev. Behind encryption or volumes it is the first disk below them."""
    try:
        number = folder.stat().st_dev
        device = _device(sys, number) or _device(sys, _mounted_from(mounts, number))
        while device is not None and (below := sorted((device / "slaves").glob("*"))):
            device = below[0].resolve()
    except OSError:
        return None
    if device is None:
        return None
    return device.parent.name if (device / "partition").exists() else device.name


def _device(sys: Path, number: int | None) -> Path | None:
    if number is None:
        return None
    found = sys / "dev" / "block" / f"{os.major(number)}:{os.minor(number)}"
    return found.resolve() if found.exists() else None


def _mounted_from(mounts: Path, number: int) -> int | None:
    """File systems of several volumes, such as btrfs, have a number of their own; the mount names their device."""
    for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines():
        before, _, behind = line.partition(" - ")
        fields, source = before.split(), behind.split()[1:2]
        if fields[2] == f"{os.major(number)}:{os.minor(number)}" and source and source[0].startswith("/dev/"):
            return Path(source[0]).stat().st_rdev
    return None


def _ask(command: list[str]) -> dict[str, Any]:
    try:
        done = subprocess.run(command, capture_output=True, timeout=ANSWER_SECONDS, stdin=subprocess.DEVNULL)
        told = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return {}
    return told if isinstance(told, dict) else {}
