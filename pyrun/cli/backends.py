"""Has `llama-run --list-backends`, and the choice behind `--backend auto`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import click

from pyrun.build.builder import is_built, take_snapshot
from pyrun.build.choose import Standing, choose_backend, standings
from pyrun.home import BundledHome, Home
from pyrun.machine.backends import check_backends, install_hint
from pyrun.machine.describe import Machine, describe
from pyrun.machine.names import AUTO, BACKENDS
from pyrun.machine.snapshot import Snapshot


@dataclass(frozen=True)
class Settled:
    backend: str
    why: str
    snapshot: Snapshot  # the machine as it was seen for this
    machine: Machine


def settle_backend(home: Home, wanted: str, *, may_build: bool = True) -> Settled:
    """Finds the backend that is meant: the one that was named, or the best one here."""
    snapshot = take_snapshot(home, wanted)
    machine = describe(snapshot)
    if wanted != AUTO:
        return Settled(wanted, "as you said", snapshot, machine)
    may_build = may_build and not isinstance(home, BundledHome)
    backend, why = choose_backend(machine, _standings(home, snapshot, machine), may_build=may_build)
    return Settled(backend, why, snapshot, machine)


def device_warning(settled: Settled) -> str | None:
    """Says so before a server starts that will not run on the card it is meant for."""
    if settled.backend == "cpu":
        return None
    here = next(b for b in check_backends(settled.snapshot, settled.machine) if b.name == settled.backend)
    if here.has_device and not here.to_run:
        return None
    if settled.backend == "vulkan" and settled.machine.software_vulkan is not None:
        return "note: the only Vulkan device is the processor itself, which is slow; --backend cpu is faster"
    why = ", ".join(f"missing: {m.what}" for m in here.to_run) or here.note or "none was found"
    return f"warning: no device for {settled.backend} ({why}): llama-server will compute on the processor"


def print_backends(home: Home) -> None:
    snapshot = take_snapshot(home, AUTO)
    machine = describe(snapshot)
    found = _standings(home, snapshot, machine)
    for standing in found:
        click.echo(f"{standing.backend.name:7} {standing.state:10} {_detail(standing, machine)}".rstrip())
    backend, why = choose_backend(machine, found, may_build=not isinstance(home, BundledHome))
    click.echo(f"auto is {backend}: {why}")


def _standings(home: Home, snapshot: Snapshot, machine: Machine) -> list[Standing]:
    found = standings(snapshot, machine, [name for name in BACKENDS if is_built(home, name)])
    if isinstance(home, BundledHome):  # what it does not have cannot be built, whatever is installed
        found = [replace(standing, lacks=[], is_buildable=False) for standing in found]
    return found


def _detail(standing: Standing, machine: Machine) -> str:
    """Says what it would run on, and what it lacks for that."""
    backend = standing.backend
    missing = list(backend.to_run)
    if not standing.is_built and (backend.has_device or standing.state == "missing"):
        missing += standing.lacks
    parts = [backend.note]
    if missing:
        parts.append(f"missing: {', '.join(m.what for m in missing)}")
        parts.append(install_hint(missing, machine.distribution))
        parts += [m.remark(machine.distribution) for m in missing]
    return "; ".join(part for part in parts if part)
