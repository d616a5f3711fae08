"""Builds upstream's own llama-server from the same pin, to compare ours with: without the series and kernels/.

Patches numbered below 10 are applied all the same: they work around faults of compilers, without which the server
does not run at all on some machines, and change nothing that it does. `Unpatched.fixes` names them, to be shown
beside every comparison.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from pyrun import console
from pyrun.build.builder import BuildRequest, build_environment, prepare_backend, take_snapshot
from pyrun.build.configure import BuildSettings, cmake_definitions
from pyrun.build.lock import build_lock
from pyrun.build.ninja import run_logged
from pyrun.build.toolchain import find_toolchain
from pyrun.build.upstream_page import page_of
from pyrun.errors import UserError
from pyrun.home import Home, version
from pyrun.upstream.git import Git
from pyrun.upstream.patches import Patch, commit_series, read_series
from pyrun.upstream.pin import read_pin
from pyrun.upstream.source import BASE

FIRST_OF_OURS = 10


@dataclass(frozen=True)
class Unpatched:
    server: Path
    source: Path
    commit: str  # upstream's own
    fixes: tuple[str, ...]  # the patches that are applied all the same


def compiler_fixes(series: list[Patch]) -> list[Patch]:
    return [patch for patch in series if int(patch.name[:4]) < FIRST_OF_OURS]


def build_unpatched(home: Home, backend: str = "cpu") -> Unpatched:
    """Builds as `llama-run build` does, into .cache/upstream. Nothing is done where nothing changed."""
    work = home.unpatched
    pin, source, folder = read_pin(home.pin), work / "source", work / "build" / backend
    base = Git(home.source).commit_of(BASE) if home.source.is_dir() else None
    if base is None:
        raise UserError("there is no source tree", "run `./llama-run build` first")
    fixes = compiler_fixes(read_series(home.patches))
    tools = find_toolchain()
    added = prepare_backend(home, BuildRequest(backend), take_snapshot(home, backend))
    settings = BuildSettings(backend, version(), pin, home.kernels, addition=added.definitions)
    definitions = cmake_definitions(settings, tools)
    definitions = {name: value for name, value in definitions.items() if not name.startswith("LLAMA_RUN_")}
    work.mkdir(parents=True, exist_ok=True)
    with build_lock(work / ".lock"):
        git = Git(source)
        if not (source / ".git").is_dir():
            source.mkdir(exist_ok=True)
            git.run("init", "--quiet")
        if git.commit_of(base) is None:
            git.run("fetch", "--quiet", "--depth", "1", str(home.source), BASE)
        wanted, _ = commit_series(git, base, fixes, f"llama.cpp {pin.short_commit}")
        if git.commit_of("HEAD") != wanted:
            console.say(f"unpacking llama.cpp {pin.short_commit}, unpatched")
            git.run("checkout", "--quiet", "--force", "--detach", wanted)
        _take_page(home, backend, source)
        server = folder / "bin" / "llama-server"
        stamp, inputs = folder / "llama-run-build.json", {"source": wanted, "cmake": definitions}
        if not (server.exists() and _read(stamp) == inputs):
            console.say("building the unpatched server from the same source")
            _compile(home, source, folder, definitions, added.environment)
            stamp.write_text(json.dumps(inputs, indent=1), encoding="utf-8")
    return Unpatched(server, source, pin.commit, tuple(patch.name for patch in fixes))


def _take_page(home: Home, backend: str, source: Path) -> None:
    """The web page is not ours to change; building it again would take longer than the server."""
    page = page_of(home.build(backend))
    if (page / "index.html").exists():
        shutil.copytree(page, source / "tools" / "ui" / "dist", dirs_exist_ok=True)


def _compile(home: Home, source: Path, folder: Path, definitions: dict[str, str], environment: dict[str, str]) -> None:
    tools = find_toolchain()
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "build.log"
    log.write_bytes(b"")
    arguments = [f"-D{name}={value}" for name, value in definitions.items()]
    run_logged(
        [tools.cmake, "-S", str(source), "-B", str(folder), "-G", "Ninja", *arguments],
        log,
        env={"CXX": tools.cxx, **environment},
    )
    progress = console.Progress("building the unpatched server", console.STEPS)
    try:
        # Source and build lie to each other as in llama.cpp/, so that the compiler cache knows the files.
        run_logged(
            [tools.ninja, "-C", str(folder), "llama-server"],
            log,
            env={**build_environment(home), **environment},
            on_step=progress.reach,
        )
    finally:
        progress.close()


def _read(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
