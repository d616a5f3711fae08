"""Finds out which shared libraries a bundle's programs need, and in which versions."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from pyrun.errors import UserError

# Every system with glibc has these, and they cannot be brought along.
GLIBC = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|mvec))\.so\.\d+")
# These belong to the driver of a graphics card. Without it the module that needs them is not loaded.
DRIVERS = re.compile(r"lib(vulkan|cuda|amdhip64|hsa-runtime64)\.so\.\d+")
# A system's own may be newer, and then its drivers need it: these are brought along for older systems only.
FALLBACKS = ("libstdc++.so.6", "libgcc_s.so.1")


@dataclass
class Needs:
    """What all files of a bundle need."""

    libraries: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def glibc(self) -> str:
        """The oldest that has everything."""
        found = {version for name, versions in self.libraries.items() if GLIBC.fullmatch(name) for version in versions}
        numbers = [version.removeprefix("GLIBC_").split(".") for version in found if version.startswith("GLIBC_2")]
        return ".".join(max(numbers, key=lambda parts: [int(part) for part in parts], default=["2", "17"]))

    def brought(self, there: Iterable[str]) -> list[str]:
        """What has to be brought along: neither there already nor every system's, nor a driver's."""
        others = set(self.libraries) - set(there)
        return sorted(name for name in others if not GLIBC.fullmatch(name) and not DRIVERS.fullmatch(name))


def read_needs(path: Path) -> dict[str, set[str]]:
    """The libraries that a file names, with the versions of their symbols that it uses."""
    found: dict[str, set[str]] = defaultdict(set)
    library = ""
    for line in _run(["objdump", "-p", str(path)]).splitlines():
        words = line.split()
        if words[:1] == ["NEEDED"]:
            found[words[1]].update()
        elif words[:2] == ["required", "from"]:
            library = words[2].removesuffix(":")
        elif library and len(words) == 4 and words[0].startswith("0x"):
            found[library].add(words[3])
        elif not words:
            library = ""
    return found


def looks_beside(path: Path) -> bool:
    """Says whether the file's libraries are looked for in its own folder first."""
    found = re.search(r"^\s+(?:RUNPATH|RPATH)\s+(.*)$", _run(["objdump", "-p", str(path)]), re.MULTILINE)
    return found is not None and found[1].split(":")[0] == "$ORIGIN"


def find_library(name: str, compiler: str) -> Path:
    """The compiler that linked to it knows where it is."""
    path = Path(_run([compiler, f"-print-file-name={name}"]).strip())
    if not path.is_absolute() or not path.exists():
        raise UserError(f"{compiler} does not say where {name} is", "install its package, and build again")
    return path.resolve()


def strip(path: Path) -> None:
    """Takes out the symbols that only a debugger reads."""
    _run(["strip", "--strip-unneeded", str(path)])


def _run(command: list[str]) -> str:
    if shutil.which(command[0]) is None:
        raise UserError(f"a bundle is made with {command[0]}, which is not here", "install binutils")
    result = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if result.returncode != 0:
        raise UserError(f"{' '.join(command)} failed:\n  {result.stderr.strip()}")
    return result.stdout
