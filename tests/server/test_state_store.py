"""State saved by one process and restored by another, for every kind of memory: equal bit by bit.

The work is done by kernels/llama/state_test.cpp and kernels/libllama/rows_test.cpp, built beside llama-server.
"""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

import pytest
from helpers import ROOT

import toys
from pyrun.home import Home

pytestmark = pytest.mark.server

BIN = Home(ROOT).server_binary("cpu").parent

# Upstream makes no such context: one type for K and V in these, and no quantised V without flash attention.
IMPOSSIBLE = {("mla", "q8_0", "off"), ("uncut", "q8_0", "off")}

CASES = [case for case in itertools.product(toys.MODELS, ("f16", "q8_0"), ("on", "off")) if case not in IMPOSSIBLE]


def toy(name: str) -> str:
    return str(toys.ensure(name, ROOT / ".cache" / "toys"))


def run(program: str, *arguments: str) -> str:
    assert (BIN / program).exists(), f"run `ninja -C {BIN.parent} {program}` first"
    result = subprocess.run([BIN / program, *arguments, "-t", "1"], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize(("name", "kv_type", "flash"), CASES)
def test_restored_state_is_the_same_in_a_new_process(tmp_path: Path, name: str, kv_type: str, flash: str) -> None:
    options = (toy(name), str(tmp_path), "-k", kv_type, "-f", flash)
    run("state_test", "save", *options)
    # Rows may be cut anywhere; folded state goes back to the anchor of the static prefix.
    shorter = 299 if toys.MODELS[name].memory is toys.Memory.ATTENTION else 100
    assert run("state_test", "restore", *options) == f"restored 300, 593 and {shorter} tokens: equal\n"


def test_other_settings_restore_no_foreign_state(tmp_path: Path) -> None:
    """Another K/V type has another fingerprint: nothing is found, rather than misread."""
    run("state_test", "save", toy("dense"), str(tmp_path))
    result = subprocess.run(
        [BIN / "state_test", "restore", toy("dense"), str(tmp_path), "-k", "q8_0"], capture_output=True, text=True
    )
    assert result.returncode == 1 and "nothing to load" in result.stderr


def test_models_of_one_shape_have_fingerprints_of_their_own(tmp_path: Path) -> None:
    """A fine-tune differs in its tensors only."""
    model = Path(toy("dense"))
    other = tmp_path / "other.gguf"
    content = bytearray(model.read_bytes())
    content[-1] ^= 1  # the last byte of the last tensor
    other.write_bytes(content)
    run("state_test", "save", str(model), str(tmp_path))
    run("state_test", "save", str(other), str(tmp_path))
    assert len([path for path in (tmp_path / "kv-cache").iterdir() if path.is_dir()]) == 2


def test_draft_model_does_not_disturb_its_target(tmp_path: Path) -> None:
    output = run("state_test", "pair", toy("hybrid-moe"), str(tmp_path), "-d", toy("dense"))
    assert output == "target and draft restored: equal\n"


@pytest.mark.parametrize("name", ["dense", "mla", "recurrent", "uncut", "hybrid-mamba", "swa-gemma3"])
def test_rows_are_cut_and_put_back_right(name: str) -> None:
    """Fragmented cells, other sequences, unified and split caches, malformed input: see rows_test.cpp."""
    assert run("rows_test", toy(name), "-f", "20").endswith(": 0 failed\n")
