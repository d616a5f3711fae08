"""Checks, before a bundle's server is started, that this system has what it needs."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import MutableMapping, Sequence
from pathlib import Path

from pyrun.bundle.manifest import Manifest, read_manifest
from pyrun.errors import UserError
from pyrun.home import BundledHome

SEARCHED = "LD_LIBRARY_PATH"
DEVICE_VARIABLE = "LLAMA_ARG_DEVICE"  # llama-server's own
MODULES = "libggml-*.so"


def prepare_bundle(home: BundledHome, backend: str, environment: MutableMapping[str, str]) -> None:
    """Refuses what would not run, and sets the variables that the server needs; it inherits them."""
    manifest = read_manifest(home.bundle_file)
    check_system(manifest, platform.machine(), glibc_here())
    check_folder(Path.cwd())
    if old := [name for name, versions in manifest.fallbacks.items() if lacks(name, versions)]:
        _check_fallbacks(manifest, old)
        environment[SEARCHED] = os.pathsep.join(filter(None, [str(home.fallbacks), environment.get(SEARCHED)]))
    if backend == "cpu" and manifest.backends != ["cpu"]:
        # The modules of graphics cards are loaded all the same where their drivers are.
        environment.setdefault(DEVICE_VARIABLE, "none")


def check_system(manifest: Manifest, machine: str, glibc: str | None) -> None:
    if machine != manifest.machine:
        raise UserError(f"this bundle is for {manifest.machine}, and this machine is {machine}", "take another one")
    if glibc is None:
        raise UserError(
            f"this bundle needs glibc {manifest.glibc} or newer, and this system has another C library",
            "run it in a container of a distribution with glibc, or build from a clone",
        )
    if _numbers(glibc) < _numbers(manifest.glibc):
        raise UserError(
            f"this bundle needs glibc {manifest.glibc} or newer, and this system has {glibc}",
            "take a bundle that was made on an older system, or build from a clone",
        )


def _check_fallbacks(manifest: Manifest, old: list[str]) -> None:
    glibc = glibc_here() or "0"
    if _numbers(glibc) < _numbers(manifest.fallbacks_glibc):
        raise UserError(
            f"this system's {', '.join(old)} is missing or too old for this bundle; the one in it needs glibc "
            f"{manifest.fallbacks_glibc}, and this system has {glibc}",
            "install a newer one, or take a bundle that was made on an older system",
        )


def check_folder(folder: Path) -> None:
    """llama-server also looks for modules in the folder that it is started in, and would run whatever lies there."""
    try:
        found = next(iter(sorted(folder.glob(MODULES))), None)
    except OSError:
        return
    if found:
        raise UserError(
            f"llama-server would load {found.name} from the folder you are in, {folder}", "start it from another folder"
        )


def glibc_here() -> str | None:
    """Gives its version; None where the C library is another one."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (ValueError, OSError):
        return None
    return version if name == "glibc" else None


def lacks(library: str, versions: Sequence[str]) -> bool:
    """Says whether the system's own library is missing, or too old to know these versions of its symbols."""
    try:
        ctypes.CDLL(library)
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        path = next(line.split(maxsplit=5)[5] for line in maps if Path(line).name.startswith(library))
        content = Path(path).read_bytes()
    except (OSError, StopIteration):
        return True
    return any(f"{version}\0".encode() not in content for version in versions)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
