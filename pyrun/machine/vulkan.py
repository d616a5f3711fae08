"""What `vulkaninfo --summary` says about its devices."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class VulkanDevice:
    name: str
    vendor: int
    device: int
    kind: str  # integrated, discrete, virtual, cpu, other
    driver: str


def parse_vulkaninfo(text: str) -> list[VulkanDevice]:
    devices = []
    for block in re.split(r"^GPU\d+:\s*$", text, flags=re.MULTILINE)[1:]:
        values = dict(re.findall(r"^\s*(\w+)\s*=\s*(.*?)\s*$", block, re.MULTILINE))
        kind = values.get("deviceType", "").removeprefix("PHYSICAL_DEVICE_TYPE_").removesuffix("_GPU").lower()
        driver = " ".join(value for name in ("driverName", "driverInfo") if (value := values.get(name)))
        devices.append(
            VulkanDevice(
                name=values.get("deviceName", "?"),
                vendor=_number(values.get("vendorID", "")),
                device=_number(values.get("deviceID", "")),
                kind=kind or "other",
                driver=driver,
            )
        )
    return devices


def _number(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        return 0
