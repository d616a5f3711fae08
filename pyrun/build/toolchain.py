"""Finds the tools that a build needs, and says what to install where one is missing."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from pyrun.errors import UserError
from pyrun.extras import missing_extra

COMPILER_PACKAGES = "Debian/Ubuntu: g++ · Fedora: gcc-c++ · Arch/SteamOS: gcc"


@dataclass(frozen=True)
class Toolchain:
    cxx: str
    cmake: str
    ninja: str
    ccache: str | None
    npm: str | None


def find_toolchain() -> Toolchain:
    cxx = _compiler()
    return Toolchain(cxx, _wheel_tool("cmake"), _wheel_tool("ninja"), shutil.which("ccache"), shutil.which("npm"))


def _compiler() -> str:
    named = os.environ.get("CXX")
    for name in [named] if named else ["c++", "g++", "clang++"]:
        found = shutil.which(name)
        if found:
            return found
    raise UserError(
        f"the C++ compiler that CXX names is not there: {named}"
        if named
        else "no C++17 compiler found (c++, g++, clang++)",
        f"install one: {COMPILER_PACKAGES}",
    )


def _wheel_tool(name: str) -> str:
    """cmake and ninja come from the wheels that are installed with us, at the versions we pin."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise missing_extra(name, "build")
    return found
