"""Makes llama.cpp/build/<backend>/bin/llama-server from pin, patches and kernels."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from pyrun import console
from pyrun.build.backend import Addition, addition, check_buildable
from pyrun.build.configure import BuildSettings, cmake_definitions
from pyrun.build.digest import folder_digest
from pyrun.build.lock import build_lock
from pyrun.build.ninja import run_logged
from pyrun.build.rocm_sdk import read_rocm_sdk
from pyrun.build.toolchain import Toolchain, find_toolchain
from pyrun.build.upstream_page import make_page, page_of, place_page
from pyrun.build.vulkan_headers import ensure_vulkan_headers
from pyrun.bundle.manifest import read_manifest
from pyrun.errors import UserError
from pyrun.extras import IN_FULL
from pyrun.home import BundledHome, Home, version
from pyrun.machine.describe import describe
from pyrun.machine.probe import probe
from pyrun.machine.snapshot import Snapshot
from pyrun.machine.vulkan import are_headers_old, headers_version
from pyrun.upstream import source

TARGETS = ("llama-server", "ggml-rpc-server")
SOURCES = (".cpp", ".h", ".txt", ".cmake")  # what kernels/ has for a compiler and for cmake
CONFIGURED = "llama-run-configure.json"  # a file in the build's folder says what cmake was told
# A build takes so much on disk, with room to spare.
NEEDED_BYTES = {"cpu": 1 << 30, "vulkan": 3 << 29, "cuda": 3 << 30, "rocm": 3 << 30}


@dataclass(frozen=True)
class BuildRequest:
    backend: str = "cpu"
    jobs: int | None = None
    clean: bool = False
    origin: str = "pypi"
    web_ui: bool | None = None  # whether upstream's page is made for it; None: as it was built before, else yes
    target: str | None = None  # the processor to build for, where that is not this machine's
    keep_source: bool = False  # a clean build may keep it: it was made anew for another one just now

    @property
    def folder_name(self) -> str:
        """A build for another machine lies beside the one for this."""
        return f"{self.backend}-{self.target}" if self.target else self.backend


@dataclass(frozen=True)
class BuildResult:
    server: Path
    seconds: float
    changed: bool


def build(home: Home, request: BuildRequest, snapshot: Snapshot | None = None) -> BuildResult:
    """Builds what is out of date and nothing else. It may be interrupted, and started twice.

    `snapshot` is of this machine, where one was taken already.
    """
    if isinstance(home, BundledHome):
        raise UserError("a bundle has its server already, and nothing to build one from", IN_FULL)
    tools = find_toolchain()
    started = time.monotonic()
    folder = home.build(request.folder_name)
    server = home.server_binary(request.folder_name)
    with build_lock(home.build_lock):
        added = prepare_backend(home, request, snapshot or take_snapshot(home, request.backend))
        if request.clean and folder.exists():
            shutil.rmtree(folder)
        if request.clean and not request.keep_source:
            shutil.rmtree(home.upstream_page, ignore_errors=True)
        tree = source.prepare(home, request.origin, clean=request.clean and not request.keep_source)
        settings = BuildSettings(request.backend, version(), tree.pin, home.kernels, addition=added.definitions)
        definitions = cmake_definitions(settings, tools)
        stamp = folder / "llama-run-build.json"
        inputs: dict[str, object] = {
            "source": tree.commit,
            "kernels": folder_digest(home.kernels, SOURCES),
            "cmake": definitions,
        }
        if request.backend == "rocm" and (sdk := read_rocm_sdk(home.rocm_sdk)):
            inputs["rocm"] = sdk.sha256
        has_page = has_web_ui(home, request.folder_name)
        wants_page = _wants_page(request, built=server.exists(), has_page=has_page)
        as_wanted = has_page == wants_page or (wants_page and tools.npm is None)
        if not tree.edited and server.exists() and _read_json(stamp) == inputs and as_wanted:
            return BuildResult(server, time.monotonic() - started, changed=False)
        if tree.edited:
            console.say(f"building with the edits in {home.source}")
        stamp.unlink(missing_ok=True)
        _compile(home, request, tools, definitions, added.environment, folder, wants_page)
        stamp.write_text(json.dumps(inputs, indent=1), encoding="utf-8")
    return BuildResult(server, time.monotonic() - started, changed=True)


def take_snapshot(home: Home, backend: str) -> Snapshot:
    """Graphics cards are asked only where the answer matters."""
    return probe(gpus=backend != "cpu", rocm_sdk=home.rocm_sdk)


def is_built(home: Home, backend: str) -> bool:
    """Says whether a server was ever built to its end; whether it is up to date is for `build` to find out."""
    if isinstance(home, BundledHome):
        return backend in read_manifest(home.bundle_file).backends
    return home.server_binary(backend).exists() and (home.build(backend) / "llama-run-build.json").exists()


def has_web_ui(home: Home, backend: str) -> bool:
    """Says whether upstream's own page is embedded in the built server."""
    if isinstance(home, BundledHome):
        return read_manifest(home.bundle_file).has_web_ui
    return (page_of(home.build(backend)) / "index.html").exists()


def _wants_page(request: BuildRequest, *, built: bool, has_page: bool) -> bool:
    """Whoever does not say so gets what was built before: a start does not wait for npm once more."""
    if request.web_ui is not None:
        return request.web_ui
    return has_page or not built


def prepare_backend(home: Home, request: BuildRequest, snapshot: Snapshot) -> Addition:
    """Says what is missing, and fetches what can be fetched."""
    machine = describe(snapshot)
    check_buildable(snapshot, machine, request.backend, request.target)
    headers = None
    if request.backend == "vulkan" and are_headers_old(snapshot):
        headers = ensure_vulkan_headers(home.deps, ".".join(map(str, headers_version(snapshot) or ())))
    return addition(snapshot, machine, request.backend, request.target, headers)


def _compile(
    home: Home,
    request: BuildRequest,
    tools: Toolchain,
    definitions: dict[str, str],
    environment: dict[str, str],
    folder: Path,
    wants_page: bool,
) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _check_space(folder, NEEDED_BYTES[request.backend])
        page = make_page(tools.npm, home.source / "tools" / "ui", home.upstream_page) if wants_page else None
        place_page(page, folder)
        log = folder / "build.log"
        log.write_bytes(b"")
        configured = folder / CONFIGURED
        if not (folder / "build.ninja").exists() or _read_json(configured) != definitions:
            with console.waiting("configuring"):
                run_logged(
                    configure_command(tools, home.source, folder, definitions),
                    log,
                    env={"CXX": tools.cxx, **environment},
                )
            configured.write_text(json.dumps(definitions, indent=1), encoding="utf-8")
        progress = console.Progress("building llama-server", console.STEPS)
        try:
            jobs = ["-j", str(request.jobs)] if request.jobs else []
            run_logged(
                [tools.ninja, "-C", str(folder), *jobs, *TARGETS],
                log,
                env={**build_environment(home), **environment},
                on_step=progress.reach,
            )
        finally:
            progress.close()
    except OSError as error:
        raise UserError(
            f"cannot write to {folder}: {error.strerror or error}",
            "free some disk space, or check its permissions",
        ) from error


def configure_command(tools: Toolchain, source: Path, folder: Path, definitions: dict[str, str]) -> list[str]:
    """It starts afresh: cmake refuses what it remembers of another folder, which a clone that was copied or moved has.
    What is compiled stays."""
    arguments = [f"-D{name}={value}" for name, value in definitions.items()]
    return [tools.cmake, "--fresh", "-S", str(source), "-B", str(folder), "-G", "Ninja", *arguments]


def build_environment(home: Home) -> dict[str, str]:
    """Clones in different folders share one compiler cache: paths below the root are hashed as relative ones."""
    defaults = {"CCACHE_BASEDIR": str(home.root), "CCACHE_NOHASHDIR": "1"}
    own = {name: os.environ.get(name, value) for name, value in defaults.items()}
    return {**own, "NINJA_STATUS": "[%f/%t] "}


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed and not (folder / "bin").exists():
        raise UserError(
            f"a build needs about {needed / 1e9:.1f} GB, and only {free / 1e9:.1f} GB are free in {folder}",
            "free some disk space and run again",
        )


def _read_json(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
