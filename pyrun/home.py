"""Knows where things are: this is the one module that names the project's files and folders."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyrun.errors import UserError

CODE = Path(__file__).resolve().parents[1]  # a clone, or the folder that packages are installed into
INCLUDED = Path(__file__).resolve().parent / "included"  # an installed package has there what a build starts from
BUNDLE_FILE = "llama-run-bundle.json"  # a bundle has it beside the packages, and says there what it is made for


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

    def tools_config(self, port: int) -> Path:
        """It says how the llama-server of this port starts the tools, which are kept from this folder."""
        return self.memory / f"mcp-servers-{port}.json"

    @property
    def settings(self) -> Path:
        """What a person would type again."""
        return self.root / "llama-run.toml"

    @property
    def keys(self) -> Path:
        """The keys of providers, for their owner alone."""
        return self.root / "keys.json"

    @property
    def mcp_servers(self) -> Path:
        """It says which MCP servers a chat starts, and may hold their keys."""
        return self.root / "mcp.json"

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

    @property
    def upstream_page(self) -> Path:
        """It holds upstream's web page, which is the same in every build."""
        return self.build("web-page")

    def server_binary(self, backend: str) -> Path:
        return self.build(backend) / "bin" / "llama-server"

    def worker_binary(self, backend: str) -> Path:
        return self.server_binary(backend).with_name("ggml-rpc-server")


@dataclass(frozen=True)
class InstalledHome(Home):
    """The package as pip installs it: what a build starts from is in it, and what is made lies where XDG says.

    `root` holds what a person would keep: models and the memory. Upgrading the package touches none of it.
    """

    config: Path
    state: Path
    cache: Path
    included: Path = INCLUDED

    @property
    def pin(self) -> Path:
        return self.included / "llama.cpp" / "upstream.toml"

    @property
    def patches(self) -> Path:
        return self.included / "patches"

    @property
    def kernels(self) -> Path:
        return self.included / "kernels"

    @property
    def downloads(self) -> Path:
        return self.cache / "llama.cpp" / "dist"

    @property
    def source(self) -> Path:
        return self.cache / "llama.cpp" / "source"

    @property
    def build_lock(self) -> Path:
        return self.cache / "llama.cpp" / ".lock"

    @property
    def kv_cache(self) -> Path:
        return self.state / "kv-cache"

    @property
    def settings(self) -> Path:
        return self.config / "llama-run.toml"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def deps(self) -> Path:
        return self.cache / "deps"

    @property
    def web_page(self) -> Path:
        return CODE / "pyrun" / "web"

    @property
    def unpatched(self) -> Path:
        return self.cache / "upstream"

    def build(self, backend: str) -> Path:
        return self.cache / "llama.cpp" / "build" / backend


@dataclass(frozen=True)
class BundledHome(InstalledHome):
    """An unpacked bundle: what runs is in its folder, which is only read; what is made lies where XDG says."""

    folder: Path = CODE.parent

    @property
    def bundle_file(self) -> Path:
        return self.folder / "python" / BUNDLE_FILE

    @property
    def program(self) -> Path:
        return self.folder / "llama-run"

    @property
    def fallbacks(self) -> Path:
        """It holds libraries for systems whose own are too old."""
        return self.folder / "lib"

    @property
    def default_models(self) -> Path:
        bundled = self.folder / "models" / "built-in"
        return bundled if bundled.is_dir() else super().default_models

    @property
    def web_page(self) -> Path:
        return self.folder / "python" / "pyrun" / "web"

    def server_binary(self, backend: str) -> Path:
        return self.folder / "bin" / "llama-server"


def installed_home(environment: Mapping[str, str], included: Path = INCLUDED) -> InstalledHome:
    """A variable of XDG counts where it holds an absolute path, as its specification has it."""

    def folder(variable: str, otherwise: str) -> Path:
        named = Path(environment.get(variable, ""))
        return (named if named.is_absolute() else Path.home() / otherwise) / "llama-run"

    return InstalledHome(
        root=folder("XDG_DATA_HOME", ".local/share"),
        config=folder("XDG_CONFIG_HOME", ".config"),
        state=folder("XDG_STATE_HOME", ".local/state"),
        cache=folder("XDG_CACHE_HOME", ".cache"),
        included=included,
    )


def bundled_home(environment: Mapping[str, str], folder: Path = CODE.parent) -> BundledHome:
    return BundledHome(**vars(installed_home(environment)), folder=folder)


def is_bundle() -> bool:
    """Says whether this package runs from a bundle."""
    return (CODE / BUNDLE_FILE).is_file()


def is_clone() -> bool:
    """Says whether this package runs from a clone."""
    return (CODE / "pyproject.toml").is_file()


def find_home() -> Home:
    """Finds the clone or the bundle this package runs from, or the clone that LLAMA_RUN_HOME names; else the package's
    own folders."""
    named = os.environ.get("LLAMA_RUN_HOME")
    if not named and is_bundle():
        return bundled_home(os.environ)
    if not named and not is_clone() and INCLUDED.is_dir():
        return installed_home(os.environ)
    home = Home(Path(named).resolve() if named else CODE)
    if not home.pin.is_file():
        raise UserError(
            f"{home.root} is not a checkout of llama-run: it has no llama.cpp/upstream.toml",
            "run ./llama-run from a clone, or set LLAMA_RUN_HOME to one",
        )
    return home


def version() -> str:
    from importlib import metadata  # it takes longer to load than the rest of the launcher

    try:
        return metadata.version("llama-run")
    except metadata.PackageNotFoundError:  # a checkout that is used as it lies, without being installed
        text = (CODE / "pyproject.toml").read_text(encoding="utf-8")
        found = re.search(r'^version = "(.*)"$', text, re.MULTILINE)
        return found[1] if found else "0"
