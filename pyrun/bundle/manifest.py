"""Says what a bundle is made for: a file in it, which it reads when it starts."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from pyrun.errors import UserError


@dataclass(frozen=True)
class Manifest:
    version: str  # llama-run's own
    commit: str  # llama.cpp's
    machine: str  # the kind of processor, as the kernel calls it
    target: str  # which code for it: portable, or one processor
    backends: list[str]
    has_web_ui: bool  # upstream's own page is in the server
    python: str  # the oldest that it runs with
    glibc: str  # likewise
    fallbacks: dict[str, list[str]]  # libraries for systems whose own lack one of these versions of their symbols
    fallbacks_glibc: str  # the oldest that those run with


def write_manifest(path: Path, manifest: Manifest) -> None:
    path.write_text(json.dumps(asdict(manifest), indent=1) + "\n", encoding="utf-8")


@cache
def read_manifest(path: Path) -> Manifest:
    try:
        return Manifest(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path} cannot be read: {error}", "unpack the bundle again") from error
