"""Says which cmake definitions a backend is built with. It is pure: settings in, arguments out."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from pyrun.build.toolchain import Toolchain
from pyrun.upstream.pin import Pin

ORIGIN = "@loader_path" if sys.platform == "darwin" else "$ORIGIN"
LANGUAGES = {"cuda": ["CUDA"], "rocm": ["HIP"]}  # what is compiled apart from C and C++


@dataclass(frozen=True)
class BuildSettings:
    backend: str
    version: str  # llama-run's own
    pin: Pin
    kernels: Path
    addition: dict[str, str]  # what the backend and the processor add


def cmake_definitions(settings: BuildSettings, tools: Toolchain) -> dict[str, str]:
    definitions = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_MAKE_PROGRAM": tools.ninja,
        # The build tree may be moved or copied: libraries are found relative to the binary. What cmake writes by itself
        # ends in an empty part, which means the folder that the server is started in: whatever lies there would be run.
        "CMAKE_BUILD_WITH_INSTALL_RPATH": "ON",
        "CMAKE_INSTALL_RPATH": ORIGIN,
        "CMAKE_INSTALL_RPATH_USE_LINK_PATH": "ON",
        # Only the server and the worker are built, and what they need.
        "LLAMA_BUILD_APP": "OFF",
        "LLAMA_BUILD_EXAMPLES": "OFF",
        "LLAMA_BUILD_TESTS": "OFF",
        # Models over several machines: it is two files to compile, and does nothing unless workers are named.
        "GGML_RPC": "ON",
        # Without this upstream asks git, which would answer with llama-run's own commit.
        "LLAMA_BUILD_COMMIT": settings.pin.short_commit,
        "LLAMA_BUILD_NUMBER": "0",
        # The web page is made before (upstream_page.py), else the launcher serves ours. It is never downloaded unasked.
        "LLAMA_BUILD_UI": "OFF",
        "LLAMA_UI_GZIP": "OFF",  # packed, the page is refused to programs that do not unpack, such as a plain curl
        "LLAMA_USE_PREBUILT_UI": "OFF",
        "LLAMA_RUN_KERNELS": str(settings.kernels),
        "LLAMA_RUN_VERSION": settings.version,
        "LLAMA_RUN_PIN": settings.pin.commit,
    }
    if tools.ccache:
        languages = ["C", "CXX", *LANGUAGES.get(settings.backend, [])]
        definitions |= {f"CMAKE_{language}_COMPILER_LAUNCHER": tools.ccache for language in languages}
    return definitions | settings.addition
