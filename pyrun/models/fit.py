"""Says whether a model fits, where its weights go, and what would fit if it does not. It is pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyrun.machine.describe import GIB, Machine
from pyrun.models.facts import ModelFacts

MIB = 1 << 20
LEAST_CONTEXT = 4096
# The system gets an eighth of RAM, within these. 6 GiB is enough for a desktop.
LEAST_RESERVE, MOST_RESERVE = GIB, 6 * GIB
# This stays free on a graphics card for what others draw; of shared memory the system's part is taken off already.
CARD_MARGIN, SHARED_MARGIN = GIB, GIB // 2
SCRATCH = 128 * MIB

# Files of each kind come out at so many bits per weight; the best comes first.
QUANTISATIONS = {
    "BF16": 16.0, "Q8_0": 8.5, "Q6_K": 6.6, "Q5_K_M": 5.7, "Q4_K_M": 4.9, "IQ4_XS": 4.3, "Q3_K_M": 3.9, "IQ3_XXS": 3.2,
    "Q2_K": 2.9, "IQ2_XXS": 2.2,
}  # fmt: skip


@dataclass(frozen=True)
class Memory:
    """What a model may take. On a machine whose graphics share RAM, `both` is less than the sum."""

    gpu: int  # 0 where no graphics are used
    ram: int  # what it may take beside what graphics hold
    both: int
    gpu_text: str  # how `gpu` is made up
    text: str  # how `both` is made up


def memory_for(machine: Machine, backend: str, most_cards: int | None = None) -> Memory:
    """`most_cards` says how many of several cards, which are alike, may be used; None means all."""
    reserve = min(max(machine.ram // 8, LEAST_RESERVE), MOST_RESERVE)
    ram = max(0, machine.ram - reserve)
    text = f"{_gib(machine.ram)} of RAM less {_gib(reserve)} for the system"
    gpu = machine.gpu if backend != "cpu" or machine.system == "Darwin" else None
    if gpu is None or most_cards == 0:
        return Memory(0, ram, ram, "", text)
    if gpu.is_unified:
        vram = gpu.vram or 0
        shared = min(gpu.gtt or 0, ram)
        usable = max(0, vram + shared - SHARED_MARGIN)
        made_up = f"{_gib(vram)} of VRAM and {_gib(shared)} of GTT" if vram else f"{_gib(shared)} of RAM"
        total = f"{_gib(vram)} of VRAM and {text}" if vram else text
        return Memory(usable, ram, ram + vram, made_up, total)
    there = [card for card in machine.gpus if not card.is_unified and card.vendor == gpu.vendor]
    cards = there[:most_cards]
    vram = sum(max(0, (card.vram or 0) - CARD_MARGIN) for card in cards)
    made_up = f"{_gib(sum(card.vram or 0 for card in cards))} of VRAM"
    if len(cards) < len(there):
        made_up += f" on {len(cards)} of {len(there)} cards"
    return Memory(vram, ram, vram + ram, made_up, f"{made_up} and {text}")


def with_workers(memory: Memory, devices: Sequence[int]) -> Memory:
    """Adds the memory of other machines, which upstream uses like a graphics card's: what is free on each device. What
    serves there as RAM is said to be free as a whole, so the system gets its part."""
    lent = sum(max(0, free - min(max(free // 8, LEAST_RESERVE), MOST_RESERVE)) for free in devices)
    text = f"{_gib(lent)} of workers"
    gpu_text = f"{memory.gpu_text} and {text}" if memory.gpu else text
    return Memory(memory.gpu + lent, memory.ram, memory.both + lent, gpu_text, f"{memory.text} and {text}")


@dataclass(frozen=True)
class Shape:
    """The settings that take memory."""

    context: int
    type_k: str
    type_v: str
    ubatch: int
    slots: int
    beside: int = 0  # what is loaded beside the model takes so many bytes


@dataclass(frozen=True)
class Need:
    weights: int
    cache: int
    compute: int
    beside: int = 0  # a projector and a draft model, which go where the weights go first

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.compute + self.beside

    def __str__(self) -> str:
        text = f"{_gib(self.weights)} of weights, {_gib(self.cache)} of context, {_gib(self.compute)} to compute in"
        return f"{text}, {_gib(self.beside)} beside it" if self.beside else text


def need(facts: ModelFacts, shape: Shape) -> Need:
    cache = facts.kv_bytes(shape.context, shape.type_k, shape.type_v, shape.ubatch, shape.slots)
    # A batch needs its logits, its attention mask, and a few dozen rows of activations.
    per_token = 4 * facts.vocabulary + 4 * min(shape.context, 1 << 20) + 64 * facts.embedding
    return Need(facts.weights, cache, SCRATCH + shape.ubatch * per_token, shape.beside)


@dataclass(frozen=True)
class Placement:
    """Where the weights go. Without graphics, it is None: the server's choice stands."""

    gpu_layers: str | None  # it is "all" or a number
    cpu_experts: int = 0  # the experts of so many layers stay in RAM
    why: str = ""


def place(facts: ModelFacts, wanted: Need, memory: Memory) -> Placement:
    if memory.gpu == 0:
        return Placement(None, why="no graphics are used")
    if wanted.total <= memory.gpu:
        return Placement("all", why=f"{_gib(wanted.total)} fit into {memory.gpu_text}")
    over = wanted.total - memory.gpu
    if facts.expert_layers:
        per_layer = facts.expert_bytes / facts.expert_layers
        moved = math.ceil(over / per_layer)
        if moved <= facts.expert_layers:
            why = f"{_gib(over)} more than {memory.gpu_text}: experts of {moved} layers stay in RAM"
            return Placement("all", facts.leading_dense + moved, why)
        experts = facts.layers
        why = f"{memory.gpu_text} hold attention and nothing more: all experts stay in RAM"
        if wanted.total - facts.expert_bytes <= memory.gpu:
            return Placement("all", experts, why)
    per_layer = (wanted.weights + wanted.cache) / max(1, facts.layers)
    on_gpu = max(0, min(facts.layers, int((memory.gpu - wanted.compute - wanted.beside) / per_layer)))
    return Placement(
        str(on_gpu), why=f"{_gib(over)} more than {memory.gpu_text}: {on_gpu} of {facts.layers} layers fit"
    )


def fits(wanted: Need, memory: Memory) -> bool:
    return wanted.total <= memory.both


def largest_context(facts: ModelFacts, shape: Shape, memory: Memory) -> int:
    """Finds the largest multiple of 1024 that fits, and gives 0 where none does."""
    low, high = 0, max(LEAST_CONTEXT, facts.context or shape.context) // 1024
    while low < high:
        middle = (low + high + 1) // 2
        if fits(need(facts, replace(shape, context=middle * 1024)), memory):
            low = middle
        else:
            high = middle - 1
    return low * 1024


def largest_quantisation(facts: ModelFacts, shape: Shape, memory: Memory) -> str | None:
    """Finds the best one of this model that would fit at this context, and that is smaller than what it is now."""
    wanted = need(facts, shape)
    room = memory.both - (wanted.total - wanted.weights)
    if not facts.parameters:
        return None
    now = facts.weights * 8 / facts.parameters
    for name, bits in QUANTISATIONS.items():
        if bits < now and facts.parameters * bits / 8 <= room:
            return name
    return None


def _gib(n_bytes: float) -> str:
    if n_bytes < GIB / 10:
        return f"{n_bytes / MIB:.0f} MiB"
    return f"{n_bytes / GIB:.1f} GiB"
