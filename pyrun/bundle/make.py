"""Puts a bundle together from a build, and packs it."""

from __future__ import annotations

import errno
import gzip
import platform
import shutil
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pyrun import console
from pyrun.build.builder import TARGETS, BuildRequest, build, has_web_ui
from pyrun.build.toolchain import find_toolchain
from pyrun.bundle.contents import Part, library_part, page_parts, upstream_parts, write_contents
from pyrun.bundle.libraries import FALLBACKS, Needs, find_library, looks_beside, read_needs, strip
from pyrun.bundle.manifest import Manifest, write_manifest
from pyrun.bundle.packages import copy_packages
from pyrun.errors import UserError
from pyrun.home import BUNDLE_FILE, Home, version
from pyrun.models.default import VERSION as MODEL_VERSION
from pyrun.models.default import ensure_default_model
from pyrun.upstream.pin import read_pin

LAUNCHER = Path(__file__).parent / "launcher.sh"
# `python` is started with this folder.
ENTRY = '"""Enters llama-run."""\n\nfrom pyrun.__main__ import main\n\nmain()\n'


@dataclass(frozen=True)
class Wanted:
    backend: str
    target: str
    with_model: bool
    jobs: int | None = None
    web_ui: bool = True


@dataclass(frozen=True)
class Made:
    archive: Path
    name: str  # of the folder in it
    manifest: Manifest
    unpacked_bytes: int


def make_bundle(home: Home, wanted: Wanted, into: Path) -> Made:
    if platform.system() != "Linux":
        raise UserError("a bundle is made on Linux, for Linux", "elsewhere, install a package or use a clone")
    request = BuildRequest(wanted.backend, wanted.jobs, web_ui=wanted.web_ui, target=wanted.target)
    server = build(home, request).server
    name = f"llama-run-{version()}-linux-{platform.machine()}-{request.folder_name}"
    archive = into / f"{name}.tar.gz"
    try:
        into.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=into, prefix=".bundle-") as temporary:
            folder = Path(temporary) / name
            manifest = _fill(home, wanted, server.parent, has_web_ui(home, request.folder_name), folder)
            size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
            with console.waiting(f"packing {console.size(size)}"):
                packed = Path(temporary) / archive.name
                _pack(folder, packed)
            packed.replace(archive)
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        hint = "free some disk space" if error.errno == errno.ENOSPC else None
        raise UserError(f"cannot make the bundle in {into}: {what}", hint) from error
    return Made(archive, name, manifest, size)


def _fill(home: Home, wanted: Wanted, built: Path, web_ui: bool, folder: Path) -> Manifest:
    python = folder / "python"
    python.mkdir(parents=True)
    packages = copy_packages(python)
    (python / "__main__.py").write_text(ENTRY, encoding="utf-8")
    needs = _copy_server(built, folder / "bin")
    fallbacks = Needs()
    libraries = _copy_libraries(needs, fallbacks, folder)
    oldest = sys.version_info[:2]
    commit = read_pin(home.pin).commit
    manifest = Manifest(
        version=version(),
        commit=commit,
        machine=platform.machine(),
        target=wanted.target,
        backends=list(dict.fromkeys(["cpu", wanted.backend])),
        has_web_ui=web_ui,
        python=".".join(map(str, oldest)),
        glibc=needs.glibc(),
        fallbacks={name: sorted(needs.libraries[name]) for name in FALLBACKS if name in needs.libraries},
        fallbacks_glibc=fallbacks.glibc(),
    )
    write_manifest(python / BUNDLE_FILE, manifest)
    parts = [
        *packages[:1],
        *upstream_parts(home.source, commit),
        *(page_parts(home.source) if web_ui else ()),
        *libraries,
        *packages[1:],
    ]
    if wanted.with_model:
        model = ensure_default_model(home)
        there = folder / "models" / "built-in" / model.name
        there.parent.mkdir(parents=True)
        shutil.copyfile(model, there)
        # The licence has one text, and a package that comes along has it, too.
        texts = tuple(text for part in packages if part.name == "requests" for text in part.texts)
        parts.append(Part(model.stem, MODEL_VERSION, "Apache-2.0", tuple(t for t in texts if t.name == "LICENSE")))
    write_contents(folder, parts, manifest)
    launcher = LAUNCHER.read_text(encoding="utf-8").replace("@OLDEST_PYTHON@", ", ".join(map(str, oldest)))
    (folder / "llama-run").write_text(launcher.replace("@OLDEST@", manifest.python), encoding="utf-8")
    (folder / "llama-run").chmod(0o755)
    return manifest


def _copy_server(built: Path, folder: Path) -> Needs:
    """Copies server, worker and what is built beside them, each library once, by the name that it is asked for."""
    folder.mkdir()
    queue = [Path(shutil.copy2(built / program, folder)) for program in TARGETS]
    for module in sorted(built.glob("libggml-*.so")):
        # Modules are loaded by this name; other libraries have a version, and are needed by one of them or the server.
        if not list(built.glob(f"{module.name}.*")):
            queue.append(Path(shutil.copy2(module, folder)))
    needs = Needs()
    while queue:
        file = queue.pop()
        for name, versions in read_needs(file).items():
            needs.libraries[name] |= versions
            if (built / name).exists() and not (folder / name).exists():
                queue.append(Path(shutil.copy2(built / name, folder)))
    for file in folder.iterdir():
        strip(file)
    return needs


def _copy_libraries(needs: Needs, fallbacks: Needs, folder: Path) -> list[Part]:
    """Those of the compiler lie apart: they are for systems whose own are too old. The others lie with the server. What
    either kind needs itself is added to its needs."""
    compiler = find_toolchain().cxx
    there = {path.name for path in (folder / "bin").iterdir()}
    parts = []
    while missing := needs.brought(there):
        name = missing[0]
        path = find_library(name, compiler)
        place = folder / ("lib" if name in FALLBACKS else "bin")
        if place.name == "bin":
            _check_finds(place, name)
        place.mkdir(exist_ok=True)
        shutil.copy2(path, place / name)
        there.add(name)
        parts.append(library_part(path, name))
        for other, versions in read_needs(path).items():
            (fallbacks if name in FALLBACKS else needs).libraries[other] |= versions
    return parts


def _check_finds(folder: Path, name: str) -> None:
    """On this machine the library would be found anywhere, and a trial shows nothing."""
    for file in folder.iterdir():
        if name in read_needs(file) and not looks_beside(file):
            raise UserError(
                f"{file.name} needs {name}, and would not find it in its own folder",
                "`llama-run build --clean` with the same --backend and --target builds it so that it does",
            )


def _pack(folder: Path, archive: Path) -> None:
    """The same bundle gives the same archive: nobody's name, one time, one order."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = member.mtime = 0
        member.uname = member.gname = ""
        member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
        return member

    with (
        archive.open("wb") as file,
        gzip.GzipFile("", "wb", 6, file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        tar.add(folder, folder.name, filter=plain)
