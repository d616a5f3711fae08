"""Finds which gfx an AMD chip is, from the source that is nearest to the truth, and what ROCm has to be told.

The kernel's KFD topology is asked first, then amd-smi, then rocm-smi; the table of PCI ids is the last resort.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pyrun.machine.rocm import bundle_targets
from pyrun.machine.snapshot import Snapshot

VENDOR = 0x1002
NODES = "/sys/class/kfd/kfd/topology/nodes/*/properties"


@dataclass(frozen=True)
class Apu:
    """A chip whose graphics share the machine's memory."""

    name: str
    gfx: str
    override: str | None = None  # ROCm can be told this version where its bundle lacks the chip
    is_small: bool = False  # it has two compute units, and the processor beside them is faster
    has_rocm: bool = True


_RAVEN = Apu("Raven/Picasso", "gfx902", has_rocm=False)
_RENOIR = Apu("Renoir", "gfx90c", "9.0.0")
_CEZANNE = Apu("Cezanne/Barcelo", "gfx90c", "9.0.0")
_REMBRANDT = Apu("Rembrandt 680M/660M", "gfx1035", "10.3.0")
_RAPHAEL = Apu("Raphael", "gfx1036", "10.3.0", is_small=True)
_PHOENIX = Apu("Phoenix 780M", "gfx1103", "11.0.0")
_HAWK = Apu("Hawk Point", "gfx1103", "11.0.0")

APUS: Mapping[int, Apu] = {
    0x15DD: _RAVEN,
    0x15D8: _RAVEN,
    0x1636: _RENOIR,
    0x164C: Apu("Lucienne", "gfx90c", "9.0.0"),
    0x1638: _CEZANNE,
    0x15E7: _CEZANNE,
    0x163F: Apu("Van Gogh", "gfx1033", "10.3.0"),
    0x1435: Apu("Sephiroth", "gfx1033", "10.3.0"),
    0x1681: _REMBRANDT,
    0x164D: _REMBRANDT,
    0x164E: _RAPHAEL,
    0x13C0: Apu("Granite Ridge", "gfx1036", "10.3.0", is_small=True),
    0x1506: Apu("Mendocino 610M", "gfx1036", "10.3.0", is_small=True),
    0x15BF: _PHOENIX,
    0x15C8: Apu("Phoenix 2", "gfx1103", "11.0.0"),
    0x1900: _HAWK,
    0x1901: _HAWK,
    0x150E: Apu("Strix Point 890M/880M", "gfx1150"),
    0x1586: Apu("Strix Halo 8060S/8050S", "gfx1151"),
    0x1114: Apu("Krackan", "gfx1152"),
    0x1902: Apu("Krackan 2", "gfx1153"),
}


@dataclass(frozen=True)
class AmdCard:
    device: int  # PCI id
    gfx: str | None
    gfx_source: str
    apu: Apu | None
    vram: int | None
    gtt: int | None
    slot: str  # PCI address, as far as the kernel says


def gfx_of_version(version: int) -> str | None:
    """110003 is gfx1103: major, minor and stepping have two digits each, the last two are written in hexadecimal."""
    major, minor, stepping = version // 10000, version // 100 % 100, version % 100
    return f"gfx{major}{minor:x}{stepping:x}" if major else None


def gfx_of_override(version: str) -> str | None:
    """11.0.0 is gfx1100, as HSA_OVERRIDE_GFX_VERSION means it."""
    match = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)", version.strip())
    return f"gfx{int(match[1])}{int(match[2]):x}{int(match[3]):x}" if match else None


def find_cards(snapshot: Snapshot) -> list[AmdCard]:
    """Finds every AMD card that the kernel's graphics driver knows, cards of their own before those in a processor."""
    cards = []
    for path in snapshot.matching("/sys/class/drm/card*/device/vendor"):
        folder = path.removesuffix("/vendor")
        device = snapshot.number(f"{folder}/device")
        if snapshot.number(path) != VENDOR or device is None:
            continue
        slot = re.search(r"^PCI_SLOT_NAME=(\S+)", snapshot.text(f"{folder}/uevent"), re.MULTILINE)
        gfx, source = find_gfx(snapshot, device)
        cards.append(
            AmdCard(
                device=device,
                gfx=gfx,
                gfx_source=source,
                apu=APUS.get(device),
                vram=snapshot.number(f"{folder}/mem_info_vram_total"),
                gtt=snapshot.number(f"{folder}/mem_info_gtt_total"),
                slot=slot[1] if slot else "",
            )
        )
    return sorted(cards, key=lambda card: (card.apu is not None, -(card.vram or 0)))


def find_gfx(snapshot: Snapshot, device: int) -> tuple[str | None, str]:
    """Finds the gfx of a PCI device, and the source that says so."""
    named = snapshot.environment.get("LLAMA_GFX_ARCH_OVERRIDE")
    if named:
        return named.strip().lower(), "LLAMA_GFX_ARCH_OVERRIDE"
    for source, found in (
        ("KFD", from_kfd(snapshot)),
        ("amd-smi", from_amd_smi(snapshot.outputs.get("amd-smi", ""))),
        ("rocm-smi", from_rocm_smi(snapshot.outputs.get("rocm-smi", ""))),
    ):
        if device in found:
            return found[device], source
        if None in found:  # a tool that names no device is certain only where there is one card
            return found[None], source
    apu = APUS.get(device)
    return (apu.gfx, "table of PCI ids") if apu else (None, "not known")


def from_kfd(snapshot: Snapshot) -> dict[int | None, str]:
    """Maps PCI devices to their gfx, for the nodes that have graphics."""
    found: dict[int | None, str] = {}
    for path in snapshot.matching(NODES):
        pairs = (line.split() for line in snapshot.text(path).splitlines())
        node = {words[0]: int(words[1]) for words in pairs if len(words) == 2 and words[1].isdigit()}
        gfx = gfx_of_version(node.get("gfx_target_version", 0))
        if gfx and node.get("device_id"):
            found[node["device_id"]] = gfx
    return found


def from_amd_smi(text: str) -> dict[int | None, str]:
    found: dict[int | None, str] = {}
    for block in re.split(r"^GPU:", text, flags=re.MULTILINE)[1:]:
        device = re.search(r"DEVICE_ID:\s*0x([0-9a-fA-F]+)", block)
        gfx = re.search(r"TARGET_GRAPHICS_VERSION:\s*(gfx[0-9a-f]+)", block)
        if device and gfx:
            found[int(device[1], 16)] = gfx[1]
    return found


def from_rocm_smi(text: str) -> dict[int | None, str]:
    """It names cards by number; several cards are told apart by their model's id, where it is printed."""
    models = dict(re.findall(r"GPU\[(\d+)\]\s*:\s*Card Model:\s*0x([0-9a-fA-F]+)", text))
    versions = dict(re.findall(r"GPU\[(\d+)\]\s*:\s*GFX Version:\s*(gfx[0-9a-f]+)", text))
    if len(versions) == 1 and not models:
        return {None: next(iter(versions.values()))}
    return {int(models[number], 16): gfx for number, gfx in versions.items() if number in models}


@dataclass(frozen=True)
class HsaOverride:
    value: str | None  # what HSA_OVERRIDE_GFX_VERSION has to be; None leaves it alone
    source: str


def hsa_override(snapshot: Snapshot, card: AmdCard) -> HsaOverride:
    """The table alone never decides: the installed bundle must lack the chip and have the one it would stand for."""
    named = snapshot.environment.get("LLAMA_GFX_VERSION_OVERRIDE")
    if named:
        return HsaOverride(named.strip(), "LLAMA_GFX_VERSION_OVERRIDE")
    theirs = snapshot.environment.get("HSA_OVERRIDE_GFX_VERSION")
    if theirs:
        return HsaOverride(None, f"HSA_OVERRIDE_GFX_VERSION is already set, to {theirs}")
    targets = bundle_targets(snapshot)
    if not targets:
        return HsaOverride(None, "no ROCm libraries are installed")
    if card.gfx in targets:
        return HsaOverride(None, f"{card.gfx_source} and the ROCm libraries agree on {card.gfx}")
    wanted = card.apu.override if card.apu else None
    if wanted and gfx_of_override(wanted) in targets:
        return HsaOverride(wanted, f"the ROCm libraries lack {card.gfx} and have {gfx_of_override(wanted)}")
    return HsaOverride(None, f"the ROCm libraries have neither {card.gfx} nor anything that stands for it")
