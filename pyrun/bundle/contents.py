"""Lists what is in a bundle, with the licences, for people who pass it on."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from pyrun import console
from pyrun.bundle.manifest import Manifest

DOCUMENTS = Path("/usr/share/doc")  # Debian and its children keep a copyright file there for each package


@dataclass(frozen=True)
class Part:
    name: str
    version: str
    licence: str
    texts: tuple[Path, ...] = ()  # of the licence


IMPORT = re.compile(r"""(?:from|import)\s*\(?\s*['"]([^'"./$][^'"]*)['"]""")
PAGE_SOURCE = (".ts", ".js", ".svelte", ".css")
# What is compiled into llama-server from upstream's vendor/, by its folder there.
VENDORED = {
    "cpp-httplib": "MIT",
    "hash": "BSD-2-Clause, MIT, public domain",
    "miniaudio": "MIT-0 or public domain",
    "nlohmann": "MIT",
    "sheredom": "Unlicense",
    "stb": "MIT or public domain",
}
# The libraries of the compiler, by the package that has them in Debian.
GCC_LICENCE = "GPL-3.0-or-later WITH GCC-exception-3.1"
LIBRARIES = {
    "libstdc++.so.6": ("libstdc++6", GCC_LICENCE),
    "libgcc_s.so.1": ("libgcc-s1", GCC_LICENCE),
    "libgomp.so.1": ("libgomp1", GCC_LICENCE),
    "libssl.so.3": ("libssl3", "Apache-2.0"),
    "libcrypto.so.3": ("libssl3", "Apache-2.0"),
}


def upstream_parts(source: Path, commit: str) -> list[Part]:
    texts = [source / "LICENSE", *sorted((source / "licenses").glob("*"))]
    parts = [Part("llama.cpp", commit[:9], "MIT", tuple(texts))]
    for name, licence in VENDORED.items():
        folder = source / "vendor" / name
        if folder.is_dir():
            # Where there is no file, the text stands in the source, at its beginning or end.
            parts.append(Part(f"{name} (in llama-server)", "", licence, tuple(sorted(folder.rglob("LICENSE*")))))
    return parts


def page_parts(source: Path) -> list[Part]:
    """The packages of npm that the source of upstream's page imports. What those need in turn, they name themselves."""
    page = source / "tools" / "ui"
    locked = json.loads((page / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    files = [file for file in (page / "src").rglob("*") if file.suffix in PAGE_SOURCE and file.is_file()]
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    imported = {"/".join(name.split("/")[: 1 + name.startswith("@")]) for name in IMPORT.findall(text)}
    entries = {name: locked[f"node_modules/{name}"] for name in sorted(imported) if f"node_modules/{name}" in locked}
    return [Part(f"{name} (in the page)", one["version"], one.get("license", "")) for name, one in entries.items()]


def library_part(path: Path, name: str) -> Part:
    """`path` is where it was taken from; its name there has the version."""
    package, licence = LIBRARIES.get(name, (name.partition(".so")[0], "as your distribution says"))
    text = DOCUMENTS / package / "copyright"
    version = path.name.partition(".so.")[2]
    return Part(name, version, licence, (text,) if text.is_file() else ())


def write_contents(folder: Path, parts: list[Part], manifest: Manifest) -> None:
    """Writes CONTENTS.txt, and the texts into licences/."""
    for part in parts:
        for text in part.texts:
            copy = folder / "licences" / part.name.partition(" ")[0] / text.name
            if copy.exists():
                copy = copy.with_name(f"{text.parent.name}-{text.name}")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(text, copy)
    rows = [("part", "version", "licence"), *((part.name, part.version, part.licence) for part in parts)]
    made_for = f"{manifest.machine} ({manifest.target}), backends: {', '.join(manifest.backends)}"
    lines = [
        f"llama-run {manifest.version} for Linux on {made_for}",
        f"It needs Python {manifest.python} and glibc {manifest.glibc}, or newer ones.",
        "Drivers of graphics cards are the system's.",
        "",
        "Start it: ./llama-run --server          Where things are: ./llama-run where",
        "",
        *(line.rstrip() for line in console.columns(rows)),
        "",
        "The texts of the licences are in licences/, but for those that ask for no copy (public domain, Unlicense,",
        "MIT-0) and those of the page's packages, and of what these need: npm has them, by name and version.",
    ]
    (folder / "CONTENTS.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
