"""Unpacks a ROCm of llama-run's own into deps/rocm, from an archive that the user names. Nothing is installed.

The archive is AMD's ROCm tarball for one family of chips. Its hash is checked where the user gives it, and recorded
either way, so that a build says which one it was made with.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tarfile
from dataclasses import asdict, dataclass
from pathlib import Path

from pyrun import archives, console
from pyrun.errors import UserError
from pyrun.machine.rocm import is_old
from pyrun.upstream.fetch import sha256_of

RECORD = "llama-run-sdk.json"
UNPACKED_RATIO = 6  # libraries and compilers pack well: 2.3 GB become 13


@dataclass(frozen=True)
class RocmSdk:
    file: str
    sha256: str
    version: str


def unpack_rocm_sdk(named: str, folder: Path) -> RocmSdk:
    """`named` is the path of a tarball, with #sha256=HEX behind it or without. Doing it twice is doing it once."""
    path, expected = _parse(named)
    with console.waiting(f"checking {path.name} ({console.size(path.stat().st_size)})"):
        actual = sha256_of(path)
    if expected and actual != expected:
        raise UserError(
            f"{path} is not what was named\n  expected sha256 {expected}\n  found           {actual}",
            "download it again; if it happens twice, do not use it",
        )
    there = read_rocm_sdk(folder)
    if there and there.sha256 == actual:
        return there
    _check_space(path, folder.parent)
    temporary = folder.with_name(f".rocm.new-{os.getpid()}")
    try:
        sdk = _unpack(path, actual, temporary)
        if folder.exists():
            shutil.rmtree(folder)
        (temporary / "tree").rename(folder)
    except OSError as error:
        raise UserError(f"cannot unpack {path.name} into {folder}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    console.say(f"unpacked ROCm {sdk.version} into {folder} (sha256 {sdk.sha256})")
    return sdk


def read_rocm_sdk(folder: Path) -> RocmSdk | None:
    """Tells what was unpacked there."""
    try:
        return RocmSdk(**json.loads((folder / RECORD).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _parse(named: str) -> tuple[Path, str | None]:
    name, _, fragment = named.partition("#")
    path = Path(name).expanduser()
    if not path.is_file():
        raise UserError(f"there is no file {path}", "give the tarball that AMD publishes for your chip")
    if not fragment:
        return path, None
    wanted = re.fullmatch(r"sha256=([0-9a-fA-F]{64})", fragment)
    if wanted is None:
        raise UserError(f"#{fragment} is not a hash", "write ARCHIVE#sha256=HEX, with 64 digits")
    return path, wanted[1].lower()


def _unpack(path: Path, sha256: str, temporary: Path) -> RocmSdk:
    with console.waiting(f"unpacking {path.name}; this takes minutes"):
        try:
            with tarfile.open(path) as tar:
                archives.extract_all(tar, temporary / "all")
        except archives.DAMAGED as error:
            raise UserError(f"{path} cannot be unpacked: {error}", "give all of a tarball from AMD") from error
    # The archive may have one folder around everything.
    configs = sorted((temporary / "all").glob("**/lib*/cmake/hipblas/hipblas-config.cmake"))
    if not configs:
        raise UserError(f"{path} is not a ROCm SDK: it has no hipBLAS in it", "give the tarball with the libraries")
    root = configs[0].parents[3]
    version = _version(root)
    if is_old(version):
        raise UserError(f"{path} is ROCm {version}; llama.cpp needs 6.1 or newer", "give a newer one")
    sdk = RocmSdk(path.name, sha256, version)
    (root / RECORD).write_text(json.dumps(asdict(sdk), indent=1), encoding="utf-8")
    root.rename(temporary / "tree")
    return sdk


def _version(root: Path) -> str:
    try:
        return (root / ".info" / "version").read_text(encoding="utf-8").strip() or "of unknown version"
    except OSError:
        return "of unknown version"


def _check_space(path: Path, folder: Path) -> None:
    needed = path.stat().st_size * UNPACKED_RATIO
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UserError(
            f"unpacking {path.name} needs about {console.size(needed)}, and only {console.size(free)} are free "
            f"in {folder}",
            "free some disk space and run again",
        )
