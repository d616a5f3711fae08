"""tests/fault/interleave.py can fail: it finds faults that are planted in a stand-in, and none where there are none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from fakes.fake_cache_server import FAULTS
from fault.interleave import interleave, table
from helpers import ROOT

ROUNDS = 6
FOUND_AS = {"wrong": "wrong", "shared": "broken", "kept": "broken", "dies": "broken", "refuses": "broken"}


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    program = tmp_path / "llama-server"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ROOT / "tests/fakes/fake_cache_server.py"}" "$@"\n')
    program.chmod(0o755)
    return program


def test_a_sound_server_passes(fake: Path) -> None:
    tallies, failures = interleave(["dense"], server=fake, without=("sleep",))
    assert not failures and tallies["dense"].answers > 30, table(tallies)


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_found(fake: Path, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_FAULT", fault)
    for seed in range(ROUNDS):
        tallies, failures = interleave(["dense"], seed=seed, server=fake, without=("sleep",))
        if failures:
            assert getattr(tallies["dense"], FOUND_AS[fault]) == 1 and f"--seed {seed} --kinds dense" in failures[0]
            return
    pytest.fail(f"not within {ROUNDS} rounds")
