"""Takes the Python packages that running needs from the environment that llama-run is installed in."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path, PurePath

from pyrun.bundle.contents import Part
from pyrun.errors import UserError
from pyrun.home import CODE

# An extension module of one Python is left behind: these packages are faster with theirs, and work without.
WORK_WITHOUT = ("charset-normalizer", "tomli")
LEFT_OUT = ("__pycache__", "tests", "included")
FOR_ONE_PYTHON = re.compile(r"\.cpython-\d+.*\.so$")


def copy_packages(folder: Path) -> list[Part]:
    """Copies llama-run and what it needs at run time, without extras, and says what that is: itself first."""
    own = metadata.distribution("llama-run")
    others = list(_needed("llama-run", set()))
    _copy_own(own, folder)
    for distribution in others:
        _copy(distribution, folder)
    return [_describe(distribution) for distribution in (own, *others)]


def _copy_own(own: metadata.Distribution, folder: Path) -> None:
    """It may be installed from a clone, whose files are used as they lie."""
    shutil.copytree(CODE / "pyrun", folder / "pyrun", ignore=shutil.ignore_patterns(*LEFT_OUT, "*.so"))
    for file in own.files or ():
        if file.parent == PurePath("pyrun") and file.suffix == ".so":
            shutil.copy2(str(own.locate_file(file)), folder / "pyrun")
    information = folder / f"llama_run-{own.version}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(own.read_text("METADATA") or "", encoding="utf-8")


def _needed(name: str, seen: set[str]) -> Iterator[metadata.Distribution]:
    """Finds what a distribution needs here, and what that needs. What is not installed was not asked for: an extra, or
    something for another Python or system."""
    for requirement in metadata.distribution(name).requires or ():
        other = re.split(r"[^\w.-]", requirement, maxsplit=1)[0].replace("_", "-").lower()
        if other in seen or "extra ==" in requirement:
            continue
        seen.add(other)
        try:
            found = metadata.distribution(other)
        except metadata.PackageNotFoundError:
            continue
        yield found
        yield from _needed(other, seen)


def _copy(distribution: metadata.Distribution, folder: Path) -> None:
    name = distribution.metadata["Name"].replace("_", "-").lower()
    for file in distribution.files or ():
        if ".." in file.parts or "__pycache__" in file.parts:
            continue
        if FOR_ONE_PYTHON.search(file.name):
            if name not in WORK_WITHOUT:
                raise UserError(
                    f"the package {name} has a module for one Python only, {file.name}",
                    "a bundle runs with any; tell pip to install the package without: --no-binary",
                )
            continue
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(str(distribution.locate_file(file)), path)


def _describe(distribution: metadata.Distribution) -> Part:
    said = distribution.metadata
    files = [file for file in distribution.files or () if re.search("licen[cs]e|copying|notice", file.name, re.I)]
    return Part(
        name=said["Name"],
        version=distribution.version,
        licence=_licence(said),
        texts=tuple(Path(str(distribution.locate_file(file))) for file in files),
    )


def _licence(said: metadata.PackageMetadata) -> str:
    """Older packages say it in older fields, and some put the whole text there."""
    for field in ("License-Expression", "License"):
        if field in said and "\n" not in said[field]:
            return said[field]
    classifiers = said.get_all("Classifier") or []
    named = [text.rpartition(" :: ")[2] for text in classifiers if text.startswith("License ::")]
    return ", ".join(named) or "see its text"
