"""One table of what is decided for each recorded machine. A change of a rule shows here, for every machine at once.

`python -m pytest tests/unit/test_machine_table.py --capture=no` prints it.
"""

from __future__ import annotations

from pathlib import Path

from fakes.machines import MACHINES, snapshot_of
from fakes.models import large, mixture, small
from helpers import ROOT

from pyrun.errors import UserError
from pyrun.machine.backends import recommended
from pyrun.machine.describe import Machine, describe
from pyrun.machine.isa import build_flags, cuda_architectures
from pyrun.models.facts import ModelFacts
from pyrun.models.profile import Wishes, choose_profile

GOLDEN = ROOT / "tests" / "golden" / "machines.txt"


def table(folder: Path) -> str:
    blocks = []
    for number, recorded in enumerate(MACHINES.values()):
        snapshot = snapshot_of(recorded, folder / str(number))
        machine = describe(snapshot)
        gpu = machine.gpu
        backend, _ = recommended(machine)
        lines = [
            f"{recorded.name}: {machine.tier}, {backend}",
            f"  cpu      {machine.cpu.level} ({machine.cpu.level_source}), {machine.cpu.threads} threads",
            f"  flags    {_flags(machine.cpu.level)}",
            f"  gpu      {_gpu(machine)}",
        ]
        if gpu and gpu.override and gpu.override.value:
            lines.append(f"  override {gpu.override.value} ({gpu.override.source})")
        if numbers := cuda_architectures(snapshot):
            lines.append(f"  cuda     {', '.join(numbers)}")
        for name, facts in (("mixture", mixture()), ("large", large()), ("small", small())):
            lines.append(f"  {name:8} {_profile(facts, machine, backend)}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _flags(level: str) -> str:
    """Of a build for such a machine elsewhere."""
    flags = build_flags(level)
    if any("ARM_ARCH" in flag for flag in flags):
        return flags[-1].removeprefix("-DGGML_")
    return " ".join(flag.removeprefix("-DGGML_").removesuffix("=ON") for flag in flags if flag.endswith("=ON"))


def _gpu(machine: Machine) -> str:
    gpu = machine.gpu
    if gpu is None:
        return "none to use"
    memory = " + ".join(f"{size / (1 << 30):.1f}" for size in (gpu.vram, gpu.gtt) if size)
    gfx = f", {gpu.gfx} ({gpu.gfx_source})" if gpu.gfx else ""
    return f"{gpu.name}{gfx}, {memory} GiB{', unified' if gpu.is_unified else ''}"


def _profile(facts: ModelFacts, machine: Machine, backend: str) -> str:
    try:
        profile = choose_profile(facts, machine, backend, Wishes({}, {}))
    except UserError as error:
        return f"refused; {error.hint.split(';')[0] if error.hint else ''}"
    shown = {
        "k cache": "K",
        "v cache": "V",
        "experts in RAM": "experts",
        "cache in RAM": "cache",
        "gpu layers": "layers",
    }
    left_out = ("jinja", "reasoning", "threads", "spacing", "context shift")
    return ", ".join(f"{shown.get(s.name, s.name)} {s.value}" for s in profile.settings if s.name not in left_out)


def test_every_machine_is_decided_as_the_table_says(tmp_path: Path) -> None:
    made = table(tmp_path)
    print(made)
    assert made == GOLDEN.read_text(encoding="utf-8"), f"if every change is meant, write what is printed to {GOLDEN}"


def test_known_good_profiles_are_used(tmp_path: Path) -> None:
    """What was measured on such machines: see docs/machine.md."""

    def settings(name: str, facts: ModelFacts) -> list[str | None]:
        machine = describe(snapshot_of(MACHINES[name], tmp_path / name))
        profile = choose_profile(facts, machine, recommended(machine)[0], Wishes({}, {}))
        return [profile.value(key) for key in ("context", "k cache", "v cache", "batch", "ubatch", "spacing")]

    moe = ["65536", "q8_0", "q8_0", "1024"]
    assert settings("7840U handheld, 32 GB", mixture()) == [*moe, "256", "8192"]
    assert settings("Strix Halo, 128 GB", mixture()) == [*moe, "512", "8192"]
    assert settings("7840U handheld, 32 GB", large()) == ["32768", "q4_0", "q4_0", None, None, None]
    assert settings("Strix Halo, 128 GB", large()) == ["32768", "q8_0", "q8_0", None, None, None]
    assert settings("Strix Halo, 128 GB", small()) == ["65536", "f16", "f16", None, None, None]
