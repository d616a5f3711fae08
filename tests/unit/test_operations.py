"""The operations that tests/fault/interleave.py plays are named by their seed alone."""

from __future__ import annotations

import itertools
import random

import pytest
from fault.operations import (
    NAMES,
    Ask,
    Operation,
    RemoveUser,
    Restart,
    Setup,
    Sleep,
    SlotFile,
    Together,
    draw_operations,
    draw_setup,
)

from toys import Memory
from toys.catalogue import WINDOW


def drawn(seed: int, without: tuple[str, ...] = (), memory: Memory = Memory.HYBRID) -> tuple[Setup, list[Operation]]:
    rng = random.Random(seed)
    setup = draw_setup(rng, memory, without)
    return setup, list(itertools.islice(draw_operations(rng, setup, without), 60))


def test_seed_names_a_round() -> None:
    assert drawn(3) == drawn(3) != drawn(4)


def test_every_operation_is_drawn_sometime_and_named_slots_are_there() -> None:
    rounds = [drawn(seed) for seed in range(40)]
    seen = {type(operation) for _, operations in rounds for operation in operations}
    assert {Ask, Together, SlotFile, RemoveUser, Sleep, Restart} <= seen
    for setup, operations in rounds:
        asks = [o for o in operations if isinstance(o, Ask)]
        asks += [ask for o in operations if isinstance(o, Together) for ask in o.asks]
        assert all(ask.slot is None or ask.slot < setup.slots for ask in asks)
        assert all(ask.answers <= setup.slots for ask in asks)
        assert not any(isinstance(o, Sleep) for o in operations) or setup.sleeps


@pytest.mark.parametrize(("name", "kind"), [("together", Together), ("files", SlotFile), ("sleep", Sleep)])
def test_what_is_left_out_does_not_happen(name: str, kind: type) -> None:
    assert name in NAMES
    assert not any(isinstance(o, kind) for seed in range(20) for o in drawn(seed, (name,))[1])


def test_batches_are_no_smaller_than_a_sliding_window() -> None:
    for seed in range(40):
        flags = drawn(seed, memory=Memory.SLIDING_WINDOW)[0].flags
        assert int(flags[flags.index("-ub") + 1]) >= WINDOW
