"""Reads what `vulkaninfo --summary` says about its devices, and how old the headers are that a build would use."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyrun.machine.snapshot import Snapshot

# llama.cpp uses VK_EXT_layer_settings, which came with 1.3.272.
OLDEST_HEADERS = (1, 3, 272)


@dataclass(frozen=True)
class VulkanDevice:
    name: str
    vendor: int
    device: int
    kind: str  # it is one of integrated, discrete, virtual, cpu, other
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


def headers_version(snapshot: Snapshot) -> tuple[int, int, int] | None:
    """The headers that cmake finds first say it; None where there are none, or they do not say."""
    places = snapshot.matching("*/include/vulkan/vulkan_core.h")
    sdk = snapshot.environment.get("VULKAN_SDK")
    places.sort(key=lambda path: (not (sdk and path.startswith(sdk)), not path.startswith("/usr/local/")))
    for path in places:
        text = snapshot.text(path)
        release = re.search(r"VK_HEADER_VERSION_COMPLETE\s+VK_MAKE_API_VERSION\(\s*\d+,\s*(\d+),\s*(\d+),", text)
        patch = re.search(r"#define VK_HEADER_VERSION\s+(\d+)", text)
        if release and patch:
            return int(release[1]), int(release[2]), int(patch[1])
    return None


def are_headers_old(snapshot: Snapshot) -> bool:
    version = headers_version(snapshot)
    return version is not None and version < OLDEST_HEADERS


def can_fetch_headers(snapshot: Snapshot) -> bool:
    """Says whether newer ones can be taken from a later release of the same distribution."""
    is_debian = re.search(r'^ID="?debian"?$', snapshot.text("/etc/os-release"), re.MULTILINE)
    return bool(is_debian) and bool(snapshot.matching("/usr/lib/apt/apt-helper"))


def _number(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        return 0
