"""Finds ROCm: one that ROCM_PATH names, one unpacked into deps/, or the system's."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyrun.machine.snapshot import Snapshot

OLDEST = (6, 1)  # llama.cpp takes no older one
SYSTEM = "/usr"  # a distribution's own packages lie there: their tools find each other
CONFIG = re.compile(r"^(.*)/lib(?:64)?(?:/[^/]+-linux-gnu)?/cmake/hipblas/hipblas-config\.cmake$")
COMPILERS = ("lib/llvm/bin/clang++", "llvm/bin/clang++")
DEVICE_LIBRARIES = ("lib/llvm/amdgcn/bitcode", "amdgcn/bitcode")


@dataclass(frozen=True)
class Rocm:
    root: str
    compiler: str | None  # it compiles HIP; None where cmake asks hipconfig
    device_libraries: str | None  # None where the compiler knows where they are
    has_hipcc: bool
    version: str  # "" where nothing tells it

    @property
    def is_old(self) -> bool:
        return is_old(self.version)


def find_rocm(snapshot: Snapshot) -> Rocm | None:
    """Finds the one that a build would use: a root with hipBLAS in it."""
    configs = snapshot.matching("*/cmake/hipblas/hipblas-config.cmake")
    roots = {match[1] for path in configs if (match := CONFIG.match(path))}
    if not roots:
        return None
    named = snapshot.environment.get("ROCM_PATH", "").rstrip("/")
    root = min(roots, key=lambda r: (r != named, *_order(r)))

    def own(names: tuple[str, ...]) -> str | None:
        there = [f"{root}/{name}" for name in names if f"{root}/{name}" in snapshot.paths]
        return there[0] if there and root != SYSTEM else None

    return Rocm(
        root=root,
        compiler=own(COMPILERS),
        device_libraries=own(DEVICE_LIBRARIES),
        has_hipcc=f"{root}/bin/hipcc" in snapshot.paths or "hipcc" in snapshot.programs,
        version=_version(snapshot, root),
    )


def is_old(version: str) -> bool:
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    return bool(numbers) and numbers < OLDEST


def _version(snapshot: Snapshot, root: str) -> str:
    """AMD's packages tell it, or HIP does, which is what llama.cpp asks."""
    if told := snapshot.text(f"{root}/.info/version"):
        return told
    configs = snapshot.matching(f"{root}/lib*/cmake/hip/hip-config-version.cmake")
    found = [re.search(r'PACKAGE_VERSION "([^"]+)"', snapshot.text(path)) for path in configs]
    return next((match[1] for match in found if match), "")


def _order(root: str) -> tuple[int, str]:
    """What was unpacked into deps/ was put there on purpose; /opt/rocm is the newest of several in /opt."""
    for rank, start in ((1, "/opt/rocm"), (3, SYSTEM)):
        if root == start:
            return rank, root
    return (2 if root.startswith("/opt/rocm-") else 0), root


def bundle_targets(snapshot: Snapshot) -> frozenset[str]:
    """Finds the chips that the ROCm libraries were built for; there are none where there is no library."""
    rocm = find_rocm(snapshot)
    names = snapshot.matching(f"{rocm.root if rocm else '*'}/*/library/TensileLibrary_lazy_gfx*.dat")
    return frozenset(match[1] for name in names if (match := re.search(r"_(gfx[0-9a-f]+)\.dat$", name)))
