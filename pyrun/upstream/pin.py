"""Reads the pin: which llama.cpp llama-run is built from (llama.cpp/upstream.toml)."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyrun.errors import UserError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class Pin:
    package: str
    version: str
    file: str
    sha256: str
    path: str
    repository: str
    commit: str
    tree: str

    @property
    def short_commit(self) -> str:
        return self.commit[:9]


def read_pin(path: Path) -> Pin:
    try:
        content: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        pypi, git = content["pypi"], content["git"]
        return Pin(
            package=pypi["package"],
            version=pypi["version"],
            file=pypi["file"],
            sha256=pypi["sha256"],
            path=pypi["path"],
            repository=git["repository"],
            commit=git["commit"],
            tree=git["tree"],
        )
    except (tomllib.TOMLDecodeError, KeyError) as error:
        raise UserError(
            f"{path} is not a valid pin: {error}", "restore it with `git checkout llama.cpp/upstream.toml`"
        ) from error
