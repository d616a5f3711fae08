"""Tells whether anything changed below a folder."""

from __future__ import annotations

import hashlib
from pathlib import Path


def folder_digest(folder: Path, endings: tuple[str, ...] = ("",)) -> str:
    """Counts names and contents of the files whose names end so; every name ends in nothing."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.name.endswith(endings) and path.is_file():
            digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()
