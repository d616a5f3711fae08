"""Remembers which stored state belongs to which model file, as servers told it when they were ready.

A fingerprint is made from what a model holds and how it is run; only a server knows it. A small file in the cache
folder keeps what was told, so that a list of models can say how much is stored for each. Losing it loses nothing else.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from pyrun import _kernels
from pyrun.extras import has_native

FILE = ".models.json"  # it is hidden, because the folder is for stored state
Identity = dict[str, Any]


def remember(cache: Path, model: Path, fingerprint: str) -> None:
    """Keeps it in the cache folder. A disk that refuses is no reason to stop a server."""
    try:
        identity = _identity(model)
        # What lay at this path before, with another size or time, is another model.
        others = [entry for entry in _read(cache) if entry["path"] != identity["path"]]
        known = fingerprints_of(cache, model)
        if fingerprint in known:
            return
        # The path has no links in it; a link's own name says more, where the file is called after its hash.
        entry = identity | {"name": model.name, "fingerprints": [*known, fingerprint]}
        temporary = cache / f"{FILE}.new-{os.getpid()}"
        temporary.write_text(json.dumps([*others, entry], indent=1) + "\n", encoding="utf-8")
        temporary.chmod(0o600)
        temporary.replace(cache / FILE)
    except OSError:
        return


def fingerprints_of(cache: Path, model: Path) -> list[str]:
    """Gives those of the file as it is now, and none where no server has told."""
    try:
        identity = _identity(model)
    except OSError:
        return []
    for entry in _read(cache):
        if all(entry[name] == value for name, value in identity.items()):
            return list(entry["fingerprints"])
    return []


def owners(cache: Path) -> dict[str, str]:
    """Gives the name of the model, without its folder, that each fingerprint belongs to."""
    entries = _read(cache)
    return {one: Path(str(e.get("name", e["path"]))).stem for e in entries for one in e["fingerprints"]}


def _identity(model: Path) -> Identity:
    status = model.stat()
    return {"path": str(model.resolve()), "size": status.st_size, "mtime_ns": status.st_mtime_ns}


def _read(cache: Path) -> list[dict[str, Any]]:
    """Takes only entries that are whole: anyone may have edited the file."""
    try:
        entries = json.loads((cache / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [entry for entry in entries if _is_whole(entry)] if isinstance(entries, list) else []


def _is_whole(entry: Any) -> bool:
    if not isinstance(entry, dict) or not {"path", "size", "mtime_ns", "fingerprints"} <= entry.keys():
        return False
    prints = entry["fingerprints"]
    return isinstance(prints, list) and all(isinstance(p, str) and _may_be_fingerprint(p) for p in prints)


def _may_be_fingerprint(name: str) -> bool:
    """Without the native module no folder is opened by such a name: it is only compared."""
    return not has_native() or _kernels.is_fingerprint(name)
