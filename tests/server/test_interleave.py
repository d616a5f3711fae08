"""A minute of random interleavings, the same ones each time. `python -m tests.fault.interleave` plays others."""

from __future__ import annotations

import pytest
from backend import require_backend
from fault.interleave import interleave, table

import toys

pytestmark = pytest.mark.server

SEED = 1


@pytest.mark.parametrize("kind", toys.MODELS)
def test_interleaved_requests_answer_as_without_the_cache(kind: str) -> None:
    require_backend()
    tallies, failures = interleave([kind], seed=SEED, ops=40)
    assert not failures, f"{failures[0]}\n{table(tallies)}"
    assert tallies[kind].answers > 20 and tallies[kind].reused > 0, table(tallies)
