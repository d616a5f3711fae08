"""Chooses a backend of those that are built or can be. It is pure, so that every machine's choice is in a test."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from pyrun.build.backend import is_buildable
from pyrun.machine.backends import Backend, Missing, build_needs, check_backends, install_hint, recommended
from pyrun.machine.describe import Machine
from pyrun.machine.snapshot import Snapshot

# These follow where the best one cannot be used. ROCm is only ever chosen by name, or where it is built already.
NEXT_BEST = {"cuda": ("cuda", "vulkan", "cpu"), "vulkan": ("vulkan", "rocm", "cpu"), "cpu": ("cpu",)}


@dataclass(frozen=True)
class Standing:
    """How a backend stands on this machine."""

    backend: Backend
    is_built: bool
    lacks: list[Missing]  # what a build still needs
    is_buildable: bool  # all is there, and a device to build for

    @property
    def state(self) -> str:
        if self.is_built:
            return "built"
        if self.is_buildable:
            return "buildable"
        return "missing" if self.backend.has_device else "no-device"

    def can_run(self, *, may_build: bool) -> bool:
        if not self.backend.has_device or self.backend.to_run:
            return False
        return self.is_built or (may_build and self.is_buildable)


def standings(snapshot: Snapshot, machine: Machine, built: Collection[str]) -> list[Standing]:
    return [
        Standing(
            backend=backend,
            is_built=backend.name in built,
            lacks=build_needs(snapshot, backend.name),
            is_buildable=is_buildable(snapshot, machine, backend.name),
        )
        for backend in check_backends(snapshot, machine)
    ]


def choose_backend(machine: Machine, found: list[Standing], *, may_build: bool = True) -> tuple[str, str]:
    """Chooses the best that is built or can be, and says why."""
    by_name = {standing.backend.name: standing for standing in found}
    best, why = recommended(machine)
    for name in NEXT_BEST[best]:
        standing = by_name[name]
        if name == "rocm" and not standing.is_built:
            continue
        if standing.can_run(may_build=may_build):
            return name, why if name == best else _instead(by_name[best], machine, may_build)
    return "cpu", why if best == "cpu" else _instead(by_name[best], machine, may_build)


def _instead(best: Standing, machine: Machine, may_build: bool) -> str:
    name = best.backend.name
    missing = best.backend.to_run + ([] if best.is_built else best.lacks)
    if not missing:
        return f"{name} would be better, and is not built" if not may_build else f"{name} would be better"
    hint = install_hint(missing, machine.distribution) or next((m.hint for m in missing if m.hint), "")
    return f"{name} would be better, and lacks {', '.join(m.what for m in missing)}{': ' + hint if hint else ''}"
