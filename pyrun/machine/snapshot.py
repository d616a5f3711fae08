"""Keeps what the probe has read, as it was: everything that is decided about a machine is decided from this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Snapshot:
    system: str  # what uname says: Linux, Darwin
    arch: str  # what uname says: x86_64, aarch64, arm64
    files: Mapping[str, str] = field(default_factory=dict)  # the text of those that are there, by path
    paths: frozenset[str] = frozenset()  # of the files and folders that were looked for, these are there
    usable: frozenset[str] = frozenset()  # this user may open these devices for reading and writing
    programs: Mapping[str, str] = field(default_factory=dict)  # their paths, by name
    outputs: Mapping[str, str] = field(default_factory=dict)  # the answers, by the question's name (see probe)
    environment: Mapping[str, str] = field(default_factory=dict)
    memlock: int | None = None  # this process may lock so many bytes in RAM; None means no limit
    cpus: int = 1  # this process may run on so many

    def text(self, path: str) -> str:
        return self.files.get(path, "").strip()

    def number(self, path: str) -> int | None:
        try:
            return int(self.text(path), 0)
        except ValueError:
            return None

    def matching(self, pattern: str) -> list[str]:
        """Gives the files that were read and the paths that are there."""
        return sorted(path for path in {*self.files, *self.paths} if fnmatchcase(path, pattern))
