"""Says what a snapshot means: processor, memory, graphics, power, and the sources that decided. It is pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from pyrun.errors import UserError
from pyrun.machine import amd
from pyrun.machine.cpu import Cpu, describe_cpu, sysctl
from pyrun.machine.nvidia import parse_nvidia_smi
from pyrun.machine.snapshot import Snapshot
from pyrun.machine.vulkan import VulkanDevice, parse_vulkaninfo

GIB = 1 << 30
TIER_OVERRIDE = "LLAMA_HARDWARE_TIER_OVERRIDE"
# A handheld has graphics in the processor and not much memory for both (Steam Deck, 7840U and laptops of their kind).
# What is unified has plenty (Strix Halo, Apple M); discrete has a card with memory of its own; cpu has no graphics.
TIERS = ("handheld", "unified", "discrete", "cpu")
HANDHELD_MEMORY = 48 * GIB
PAGE = 4096
GTT_LEAVES = 6 * GIB  # the system keeps this much of RAM where graphics get the rest


@dataclass(frozen=True)
class Gpu:
    name: str
    vendor: str  # it is one of amd, nvidia, apple, other
    source: str  # what found it
    is_unified: bool  # it shares the machine's memory
    vram: int | None = None  # what it has of its own, or is set aside for it
    gtt: int | None = None  # so much of the machine's memory it may use
    memory_source: str = ""
    gfx: str | None = None  # AMD cards have one
    gfx_source: str = ""
    override: amd.HsaOverride | None = None  # what ROCm has to be told of an AMD card
    has_rocm: bool = False
    compute: str | None = None  # NVIDIA cards have one
    driver: str = ""
    is_small: bool = False  # it is slower than the processor beside it

    @property
    def memory(self) -> int:
        return (self.vram or 0) + (self.gtt or 0)


@dataclass(frozen=True)
class Power:
    on_battery: bool | None  # None where it cannot be told
    percent: int | None
    source: str


@dataclass(frozen=True)
class Machine:
    name: str  # what its maker calls it, or ""
    system: str
    distribution: str  # it is one of debian, fedora, arch, macos, or "" for others
    distribution_name: str
    cpu: Cpu
    ram: int
    ram_source: str
    gpus: list[Gpu]  # the best comes first
    vulkan: list[VulkanDevice]
    vulkan_source: str
    software_vulkan: int | None  # the number of a device that is the processor itself
    memlock: int | None  # in bytes; None means no limit
    power: Power
    tier: str
    tier_source: str
    ttm_limit: int | None = None  # graphics may take so many bytes of RAM, as the kernel is set now
    notes: list[str] = field(default_factory=list)

    @property
    def gpu(self) -> Gpu | None:
        """It is the one to use."""
        return next((gpu for gpu in self.gpus if not gpu.is_small), None)


def describe(snapshot: Snapshot) -> Machine:
    cpu = describe_cpu(snapshot)
    ram, ram_source = _ram(snapshot)
    devices = parse_vulkaninfo(snapshot.outputs.get("vulkaninfo", ""))
    gpus = _gpus(snapshot, devices, ram)
    tier, tier_source = _tier(snapshot, gpus, ram)
    pages = snapshot.number("/sys/module/ttm/parameters/pages_limit")
    family, name = _distribution(snapshot)
    return Machine(
        name=snapshot.text("/sys/class/dmi/id/product_name") or sysctl(snapshot).get("hw.model", ""),
        system=snapshot.system,
        distribution=family,
        distribution_name=name,
        cpu=cpu,
        ram=ram,
        ram_source=ram_source,
        gpus=gpus,
        vulkan=[device for device in devices if device.kind != "cpu"],
        vulkan_source="vulkaninfo" if devices else _why_no_vulkan(snapshot),
        software_vulkan=next((n for n, device in enumerate(devices) if device.kind == "cpu"), None),
        memlock=snapshot.memlock,
        power=_power(snapshot),
        tier=tier,
        tier_source=tier_source,
        ttm_limit=pages * PAGE if pages else None,
        notes=_notes(gpus, ram, name),
    )


def _ram(snapshot: Snapshot) -> tuple[int, str]:
    told = sysctl(snapshot).get("hw.memsize", "")
    if told.isdigit():
        return int(told), "sysctl"
    match = re.search(r"^MemTotal:\s*(\d+) kB", snapshot.text("/proc/meminfo"), re.MULTILINE)
    total = int(match[1]) * 1024 if match else 0
    limit = snapshot.number("/sys/fs/cgroup/memory.max")
    if limit and limit < total:
        return limit, "limit of the container"
    return total, "/proc/meminfo" if match else "not known"


def _gpus(snapshot: Snapshot, devices: list[VulkanDevice], ram: int) -> list[Gpu]:
    gpus = _nvidia(snapshot, ram) + _amd(snapshot, devices) + _apple(snapshot, ram)
    known = {gpu.vendor for gpu in gpus}
    vendors = {0x10DE: "nvidia", amd.VENDOR: "amd", 0x106B: "apple"}
    for device in devices:
        vendor = vendors.get(device.vendor, "other")
        if device.kind == "cpu" or vendor in known:
            continue
        is_unified = device.kind != "discrete"
        gpus.append(
            Gpu(
                name=device.name,
                vendor=vendor,
                source="vulkaninfo",
                is_unified=is_unified,
                # The kernel lends graphics half of RAM where nothing else is said.
                gtt=ram // 2 if is_unified else None,
                memory_source="half of RAM, a guess" if is_unified else "not known",
                driver=device.driver,
            )
        )
    # A card of its own goes before graphics in the processor, and more memory before less.
    return sorted(gpus, key=lambda gpu: (gpu.is_unified, -gpu.memory))


def _nvidia(snapshot: Snapshot, ram: int) -> list[Gpu]:
    return [
        Gpu(
            name=card.name,
            vendor="nvidia",
            source="nvidia-smi",
            is_unified=card.memory is None,
            vram=card.memory,
            gtt=ram if card.memory is None else None,
            memory_source="nvidia-smi" if card.memory is not None else "shares RAM, nvidia-smi says",
            compute=card.compute,
            driver=card.driver,
        )
        for card in parse_nvidia_smi(snapshot.outputs.get("nvidia-smi", ""))
    ]


def _amd(snapshot: Snapshot, devices: list[VulkanDevice]) -> list[Gpu]:
    by_id = {device.device: device for device in devices if device.vendor == amd.VENDOR}
    found = []
    for card in amd.find_cards(snapshot):
        seen = by_id.get(card.device)
        is_unified = card.apu is not None or (seen is not None and seen.kind == "integrated")
        found.append(
            Gpu(
                name=seen.name if seen else card.apu.name if card.apu else f"AMD {card.device:04x}",
                vendor="amd",
                source="PCI (sysfs)",
                is_unified=is_unified,
                vram=card.vram,
                # RAM that a card of its own may reach through the bus is no place for weights.
                gtt=card.gtt if is_unified else None,
                memory_source="sysfs",
                gfx=card.gfx,
                gfx_source=card.gfx_source,
                override=amd.hsa_override(snapshot, card),
                has_rocm=card.apu is None or card.apu.has_rocm,
                driver=seen.driver if seen else "",
                is_small=card.apu is not None and card.apu.is_small,
            )
        )
    return found


def _apple(snapshot: Snapshot, ram: int) -> list[Gpu]:
    told = sysctl(snapshot)
    if snapshot.system != "Darwin" or snapshot.arch != "arm64":
        return []
    limit = told.get("iogpu.wired_limit_mb", "0")
    if limit.isdigit() and int(limit):
        gtt, source = int(limit) << 20, "sysctl iogpu.wired_limit_mb"
    else:
        # macOS lets graphics wire this much by default.
        gtt, source = (ram * 3 // 4 if ram > 36 * GIB else ram * 2 // 3), "share of RAM that macOS allows"
    name = told.get("machdep.cpu.brand_string", "Apple M")
    return [Gpu(name=name, vendor="apple", source="sysctl", is_unified=True, gtt=gtt, memory_source=source)]


def _tier(snapshot: Snapshot, gpus: list[Gpu], ram: int) -> tuple[str, str]:
    named = snapshot.environment.get(TIER_OVERRIDE)
    if named:
        tier = named.strip().lower()
        if tier not in TIERS:
            raise UserError(f"{TIER_OVERRIDE}={named} is not a tier", f"choose one of {', '.join(TIERS)}")
        return tier, TIER_OVERRIDE
    best = next((gpu for gpu in gpus if not gpu.is_small), None)
    if best is None:
        return "cpu", "no graphics to use"
    if not best.is_unified:
        return "discrete", f"{best.name} has memory of its own"
    total = ram + (best.vram or 0)
    size = f"{total / GIB:.0f} GiB for processor and graphics"
    if best.vendor == "amd" and total < HANDHELD_MEMORY:
        return "handheld", size
    return "unified", size


def _power(snapshot: Snapshot) -> Power:
    batt = snapshot.outputs.get("pmset", "")
    if batt:
        percent = re.search(r"(\d+)%", batt)
        on_battery = "Battery Power" in batt.splitlines()[0]
        return Power(on_battery, int(percent[1]) if percent else None, "pmset")
    root = "/sys/class/power_supply"
    mains: list[bool] = []
    discharging, percent_left = None, None
    for path in snapshot.matching(f"{root}/*/type"):
        folder = path.removesuffix("/type")
        kind = snapshot.text(path)
        if kind in ("Mains", "USB") and snapshot.number(f"{folder}/online") is not None:
            mains.append(snapshot.number(f"{folder}/online") == 1)
        # Batteries of mice and headsets say what they belong to.
        elif kind == "Battery" and snapshot.text(f"{folder}/scope") != "Device":
            discharging = snapshot.text(f"{folder}/status") == "Discharging"
            percent_left = snapshot.number(f"{folder}/capacity")
    if discharging is None:
        return Power(False, None, "no battery") if snapshot.system == "Linux" else Power(None, None, "not known")
    if any(mains):
        return Power(False, percent_left, root)
    return Power(discharging, percent_left, root)


def _distribution(snapshot: Snapshot) -> tuple[str, str]:
    if snapshot.system == "Darwin":
        return "macos", "macOS"
    pairs = re.findall(r'^(\w+)="?(.*?)"?$', snapshot.text("/etc/os-release"), re.MULTILINE)
    release = dict(pairs)
    words = {release.get("ID", ""), *release.get("ID_LIKE", "").split()}
    for family, names in {
        "debian": {"debian", "ubuntu"},
        "fedora": {"fedora", "rhel", "centos"},
        "arch": {"arch", "steamos", "cachyos", "manjaro"},
    }.items():
        if words & names:
            return family, release.get("PRETTY_NAME", family)
    return "", release.get("PRETTY_NAME", snapshot.system)


def _why_no_vulkan(snapshot: Snapshot) -> str:
    return "vulkaninfo found none" if "vulkaninfo" in snapshot.programs else "vulkaninfo is not installed"


def _notes(gpus: list[Gpu], ram: int, distribution: str) -> list[str]:
    notes = []
    small = [gpu for gpu in gpus if gpu.is_small]
    if small and len(small) == len(gpus):
        notes.append(f"{small[0].name} has two compute units: the processor is faster")
    if any(gpu.gfx == "gfx1103" for gpu in gpus):
        notes.append("gfx1103: batches of 512 have locked this chip up with large mixtures of experts; 256 is safe")
    best = next((gpu for gpu in gpus if not gpu.is_small), None)
    if best and best.vendor == "amd" and best.gtt and best.gtt < ram - 2 * GTT_LEAVES:
        share = f"{best.gtt / GIB:.0f} of {ram / GIB:.0f} GiB of RAM"
        notes.append(f"graphics may use {share}; scripts/apply-ttm-kernel-params raises that")
    if distribution.startswith("SteamOS"):
        notes.append("SteamOS: `sudo steamos-readonly disable` before you install packages; an update removes them")
    for gpu in gpus:
        if gpu.override and gpu.override.value:
            notes.append(f"ROCm on {gpu.name}: HSA_OVERRIDE_GFX_VERSION={gpu.override.value}, {gpu.override.source}")
    return notes
