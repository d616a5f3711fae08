"""Says how many cards a server may use, where a flag or a variable leaves it only some of them. It is pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from pyrun.machine.describe import Machine

# Drivers read these, each its own; llama-server's own flag is --device.
VISIBLE = {
    "cuda": ("CUDA_VISIBLE_DEVICES",),
    "rocm": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    "vulkan": ("GGML_VK_VISIBLE_DEVICES",),
}
VENDORS = {"cuda": "nvidia", "rocm": "amd"}
END = ("", "-1", "none", "NoDevFiles")  # nothing behind one of these counts
NO_CARD = ("MIG-", "RPC")  # a part of a card, and another machine's


def cards_left(machine: Machine, backend: str, lists: Iterable[str]) -> int | None:
    """Counts what all of the lists leave, and gives None where that cannot be told: drivers number cards in orders of
    their own, so cards are only known where they are alike."""
    named = [list(itertools.takewhile(lambda name: name not in END, text.split(","))) for text in lists]
    least = min(len(set(names)) for names in named)
    cards = [gpu for gpu in machine.gpus if gpu.vendor == VENDORS.get(backend, gpu.vendor)]
    kinds = {(gpu.vendor, gpu.is_unified, gpu.vram, gpu.gtt) for gpu in cards}
    if least == 0:
        return 0
    if len(kinds) != 1 or any(name.startswith(NO_CARD) for names in named for name in names):
        return None
    return min(least, len(cards))
