"""Presets for upstream's router, and which models fit at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.models import gguf_bytes, small
from stores import make_clone, run

from pyrun.models.fit import Memory, Need
from pyrun.models.profile import Profile
from pyrun.server.router import Preset, at_most, presets_text


def test_preset_has_what_the_command_line_would_have() -> None:
    words = ("--ctx-size", "4096", "--no-context-shift", "--seed", "-1", "--temp", "1", "--temp", "0.2", "--mlock")
    assert presets_text([Preset("a b", Path("/m/a b.gguf"), words)]) == (
        "version = 1\n\n[*]\nstop-timeout = 120\n\n[a b]\nmodel = /m/a b.gguf\nctx-size = 4096\n"
        "no-context-shift = true\nseed = -1\ntemp = 0.2\nmlock = true\n"
    )


@pytest.mark.parametrize(
    ("needs", "memory", "expected"),
    [([5, 3, 2], 10, 3), ([5, 3, 2], 9, 2), ([5, 3, 2], 4, 1), ([2, 20, 2], 20, 2), ([9, 9], 4, 1), ([], 4, 1)],
)
def test_at_most_so_many_are_loaded_as_the_smallest_fit_together(needs: list[int], memory: int, expected: int) -> None:
    assert at_most(needs, memory) == expected


@pytest.mark.parametrize(
    ("memory", "shared", "share"),
    [
        (Memory(0, 20, 20, "", ""), 20, 7),  # there is RAM alone
        (Memory(12, 16, 20, "", ""), 12, 7),  # graphics share it
        (Memory(24, 16, 40, "", ""), 24, 5),  # a card has its own, and the cache is in RAM
    ],
)
def test_models_share_the_memory_that_they_are_loaded_into(memory: Memory, shared: int, share: int) -> None:
    profile = Profile(small(), "any", (), Need(3, 1, 1), memory, cache_ram=2)
    assert (profile.shared_memory, profile.share) == (shared, share)


def test_every_model_that_can_be_served_has_its_profile_and_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_clone(tmp_path)
    monkeypatch.setenv("LLAMA_RUN_HOME", str(root))
    (root / "models").mkdir()
    assert "no model in" in run(capsys, "--server", "--all", "--dry-run")[2]
    whole = gguf_bytes({"llama.context_length": 8192})
    for name, data in {"one": whole, "two": whole, "cut": whole[:-1], "odd#name": whole}.items():
        (root / "models" / f"{name}.gguf").write_bytes(data)
    (root / "llama-run.toml").write_text("[models.two]\nctx = 512\narguments = ['--temp', '0.7']\n")
    code, out, err = run(capsys, "--server", "--all", "--dry-run", "--", "--top-p", "0.5")
    assert code == 0 and "left out: cut: " in err and "left out: odd#name: " in err
    one, two = out.split("[one]")[1].split("[two]")
    assert "ctx-size = 8192" in one and "temp" not in one
    assert "ctx-size = 512" in two and "temp = 0.7" in two
    assert (
        f"--models-preset {root}/logs/models-9090.ini --models-max 2 --models-memory " in two and "--top-p 0.5" in two
    )
    assert "model-need = " in one and "model-need = " in two and "as many are loaded at once as fit" in err
    said = run(capsys, "--server", "--all", "--dry-run", "--", "--models-memory", "4G")[1]
    assert said.count("--models-memory") == 1 and "--models-memory 4G" in said
    (root / "llama-run.toml").write_text("[models.two]\narguments = ['--model-need', '900G']\n")
    told = run(capsys, "--server", "--all", "--dry-run")[1].split("[two]")[1]
    assert "model-need = 900G" in told and "--models-max 2 --models-memory" in told
    (root / "llama-run.toml").unlink()
    counted = run(capsys, "--server", "--all", "--dry-run", "--noauto")
    assert (
        "--models-max 4 --host" in counted[1] and "model-need" not in counted[1] and "--models-max says" in counted[2]
    )
    for words in ("--server one --all", "--server --all --print-profile"):
        assert run(capsys, *words.split())[0] == 2
    assert "--all goes with --server" in run(capsys, "--all")[2]
