"""Knows where things are: this is the one module that names the project's files and folders."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from pyrun.errors import UserError


@dataclass(frozen=True)
class Home:
    """A checkout of llama-run. Everything that is made (source, builds, logs) stays inside it."""

    root: Path

    @property
    def pin(self) -> Path:
        return self.root / "llama.cpp" / "upstream.toml"

    @property
    def downloads(self) -> Path:
        return self.root / "llama.cpp" / "dist"

    @property
    def source(self) -> Path:
        return self.root / "llama.cpp" / "source"

    @property
    def build_lock(self) -> Path:
        return self.root / "llama.cpp" / ".lock"

    @property
    def patches(self) -> Path:
        return self.root / "patches"

    @property
    def kernels(self) -> Path:
        return self.root / "kernels"

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def default_models(self) -> Path:
        return self.models / "built-in"

    @property
    def kv_cache(self) -> Path:
        return self.root / "kv-cache"

    @property
    def memory(self) -> Path:
        return self.root / "memory"

    @property
    def tools_config(self) -> Path:
        """It says how llama-server starts the tools, which are kept from this folder."""
        return self.memory / "mcp-servers.json"

    @property
    def settings(self) -> Path:
        """What a person would type again."""
        return self.root / "llama-run.toml"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def deps(self) -> Path:
        """It holds what builds need and the system lacks."""
        return self.root / "deps"

    @property
    def rocm_sdk(self) -> Path:
        return self.deps / "rocm"

    @property
    def web_page(self) -> Path:
        return self.root / "pyrun" / "web"

    @property
    def unpatched(self) -> Path:
        """It holds upstream's server, which ours is compared with."""
        return self.root / ".cache" / "upstream"

    def build(self, backend: str) -> Path:
        return self.root / "llama.cpp" / "build" / backend

    def server_binary(self, backend: str) -> Path:
        return self.build(backend) / "bin" / "llama-server"


def find_home() -> Home:
    """Finds the checkout this package runs from, or the one that LLAMA_RUN_HOME names."""
    named = os.environ.get("LLAMA_RUN_HOME")
    home = Home(Path(named).resolve() if named else Path(__file__).resolve().parents[1])
    if not home.pin.is_file():
        raise UserError(
            f"{home.root} is not a checkout of llama-run: it has no llama.cpp/upstream.toml",
            "run ./llama-run from a clone, or set LLAMA_RUN_HOME to one",
        )
    return home


def version() -> str:
    try:
        return metadata.version("llama-run")
    except metadata.PackageNotFoundError:  # a checkout that is used as it lies, without being installed
        text = (Path(__file__).resolve().parents[1] / "pyproject.toml").read_text(encoding="utf-8")
        found = re.search(r'^version = "(.*)"$', text, re.MULTILINE)
        return found[1] if found else "0"
