"""Reads where the power comes from: /sys/class/power_supply, which needs no daemon."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SUPPLIES = Path("/sys/class/power_supply")
MAINS = {"Mains", "USB", "USB_C"}


@dataclass(frozen=True)
class Power:
    mains: bool
    battery: int | None = None  # percent; None where there is none

    def body(self) -> dict[str, object]:
        """What POST /cache/power takes."""
        return {"mains": self.mains} | ({} if self.battery is None else {"battery": self.battery})


def read_power(supplies: Path = SUPPLIES) -> Power:
    """A machine without a battery is on mains. One with several counts the fullest: it is used up last."""
    levels: list[int] = []
    discharging = plugged = False
    for supply in sorted(supplies.glob("*")):
        kind = _read(supply / "type")
        if kind in MAINS:
            plugged = plugged or _read(supply / "online") == "1"
        # A mouse has a battery, too; only that of the machine itself has no scope, or this one.
        elif kind == "Battery" and _read(supply / "scope") in ("", "System"):
            level = _read(supply / "capacity")
            if level.isdigit():
                levels.append(min(int(level), 100))
                discharging = discharging or _read(supply / "status") == "Discharging"
    if not levels:
        return Power(mains=True)
    return Power(mains=plugged or not discharging, battery=max(levels))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
