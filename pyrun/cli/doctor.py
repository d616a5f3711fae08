"""Has `llama-run doctor`, which says what was found here, which source decided, and what each backend needs."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from pyrun import console
from pyrun.cache.usual import usual_cache
from pyrun.home import find_home
from pyrun.machine.backends import Backend, check_backends, install_hint, recommended
from pyrun.machine.describe import GIB, Gpu, Machine, describe
from pyrun.machine.disk import DiskSpeed, measure_disk
from pyrun.machine.isa import NATIVE, cuda_architectures
from pyrun.machine.probe import probe
from pyrun.machine.snapshot import Snapshot
from pyrun.models.calibration import Start, describe_starts, read_starts, starts_of

Row = tuple[str, str, str]  # it has a name, a value and the source that told


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
@click.option("--disk/--no-disk", default=True, help="Measure the disk of the cache, for half a second (default: yes).")
def doctor_command(as_json: bool, disk: bool) -> None:
    """Show what this machine is, how that was found, and what is missing for each backend.

    These variables overrule what is found: LLAMA_CPU_ISA_OVERRIDE, LLAMA_GFX_ARCH_OVERRIDE, LLAMA_GFX_VERSION_OVERRIDE,
    LLAMA_HARDWARE_TIER_OVERRIDE.
    """
    home = find_home()
    snapshot = probe(rocm_sdk=home.rocm_sdk)
    machine = describe(snapshot)
    speed, why = _disk(usual_cache(home, os.environ)) if disk else (None, "not measured")
    if as_json:
        click.echo(json.dumps(report(snapshot, machine, speed), indent=2))
        return
    for line in text_report(snapshot, machine, speed, why):
        click.echo(line)
    for line in _starts(read_starts(starts_of(home))):
        click.echo(line)


def _starts(starts: list[Start]) -> list[str]:
    """What models took where they were started, against what their profiles expected."""
    lines = ["", "memory, expected and taken:"]
    for model, backend in sorted({(start.model, start.backend) for start in starts}):
        told = describe_starts([start for start in starts if (start.model, start.backend) == (model, backend)])
        lines.append(f"  {model} ({backend}): {told}")
    return lines if starts else []


def report(snapshot: Snapshot, machine: Machine, speed: DiskSpeed | None) -> dict[str, Any]:
    backend, why = recommended(machine)
    backends = [
        {
            **asdict(b),
            "missing": [asdict(m) for m in b.missing],
            "is_ready": b.is_ready,
            "install": install_hint(b.missing, machine.distribution),
        }
        for b in check_backends(snapshot, machine)
    ]
    return {
        **asdict(machine),
        "cuda_architectures": cuda_architectures(snapshot),
        "disk": asdict(speed) if speed else None,
        "backends": backends,
        "recommended_backend": {"name": backend, "why": why},
    }


def text_report(snapshot: Snapshot, machine: Machine, speed: DiskSpeed | None, no_speed: str = "") -> list[str]:
    rows = _machine_rows(machine) + [row for gpu in machine.gpus for row in _gpu_rows(gpu)]
    rows += [("vulkan", f"{d.name}, {d.kind}, {d.driver}", machine.vulkan_source) for d in machine.vulkan]
    if not machine.vulkan:
        rows.append(("vulkan", "no device", machine.vulkan_source))
    if numbers := cuda_architectures(snapshot):
        rows.append(("cuda", ", ".join(numbers), "nvidia-smi"))
    rows.append(_disk_row(speed, no_speed))
    lines = _aligned(rows)
    lines += [f"note: {note}" for note in machine.notes]
    best, why = recommended(machine)
    lines += ["", f"backend: {best} ({why})"]
    for backend in check_backends(snapshot, machine):
        lines += _backend_lines(backend, machine)
    return lines


def _machine_rows(machine: Machine) -> list[Row]:
    cpu, power = machine.cpu, machine.power
    lock = "unlimited" if machine.memlock is None else f"{machine.memlock / (1 << 20):.0f} MiB"
    is_native = cpu.build_flags == NATIVE
    state = {True: "battery", False: "mains", None: "not known"}[power.on_battery]
    rows = [
        (
            "machine",
            f"{machine.name or 'unknown'}, {machine.distribution_name}",
            "DMI, os-release" if machine.system == "Linux" else "sysctl",
        ),
        ("tier", machine.tier, machine.tier_source),
        ("cpu", cpu.name, "/proc/cpuinfo" if machine.system == "Linux" else "sysctl"),
        ("instructions", cpu.level, cpu.level_source),
        ("build flags", " ".join(cpu.build_flags), "the compiler looks" if is_native else cpu.level_source),
        ("threads", str(cpu.threads), cpu.threads_source),
        ("memory", _gib(machine.ram), machine.ram_source),
        ("lockable", lock, "RLIMIT_MEMLOCK"),
        ("power", state + (f", {power.percent} %" if power.percent is not None else ""), power.source),
    ]
    if machine.ttm_limit is not None:
        rows.append(("ttm limit", _gib(machine.ttm_limit), "/sys/module/ttm"))
    return rows


def _gpu_rows(gpu: Gpu) -> list[Row]:
    memory = [f"{_gib(size)} {name}" for size, name in ((gpu.vram, "VRAM"), (gpu.gtt, "shared")) if size]
    rows = [("gpu", gpu.name, gpu.source), ("  memory", ", ".join(memory) or "not known", gpu.memory_source)]
    rows.append(("  unified", "yes" if gpu.is_unified else "no", gpu.source))
    if gpu.gfx:
        rows.append(("  gfx", gpu.gfx, gpu.gfx_source))
    if gpu.override:
        rows.append(("  override", gpu.override.value or "none", gpu.override.source))
    if gpu.compute:
        rows.append(("  compute", gpu.compute, gpu.source))
    if gpu.driver:
        rows.append(("  driver", gpu.driver, gpu.source if gpu.vendor == "nvidia" else "vulkaninfo"))
    return rows


def _backend_lines(backend: Backend, machine: Machine) -> list[str]:
    note = f" ({backend.note})" if backend.note else ""
    if backend.is_ready:
        return [f"  {backend.name:7} ready{note}"]
    if not backend.has_device:
        return [f"  {backend.name:7} not for this machine{note or ' (no device)'}"]
    lines = [f"  {backend.name:7} missing: {', '.join(m.what for m in backend.missing)}{note}"]
    if hint := install_hint(backend.missing, machine.distribution):
        lines.append(f"          {hint}")
    remarks = [m.remark(machine.distribution) for m in backend.missing]
    lines += [f"          {remark}" for remark in remarks if remark]
    return lines


def _disk(folder: Path) -> tuple[DiskSpeed | None, str]:
    try:
        return measure_disk(folder), ""
    except OSError as error:
        return None, f"{folder}: {error.strerror}"


def _disk_row(speed: DiskSpeed | None, why: str) -> Row:
    if speed is None:
        return "cache disk", "not known", why
    read = f"{console.size(speed.read)}/s read" if speed.read else "reading not known"
    return "cache disk", f"{read}, {console.size(speed.write)}/s written", "measured"


def _aligned(rows: list[Row]) -> list[str]:
    left = max(len(row[0]) for row in rows)
    middle = min(60, max(len(row[1]) for row in rows))
    return [f"{name:{left}}  {value:{middle}}  [{source}]" for name, value, source in rows]


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / GIB:.1f} GiB"
