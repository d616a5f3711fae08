"""What the probe has read, as it was: everything that is decided about a machine is decided from this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Snapshot:
    system: str  # as uname says: Linux, Darwin
    arch: str  # as uname says: x86_64, aarch64, arm64
    files: Mapping[str, str] = field(default_factory=dict)  # path -> text, of those that are there
    paths: frozenset[str] = frozenset()  # files and folders that are there, of those that were looked for
    usable: frozenset[str] = frozenset()  # devices that this user may open for reading and writing
    programs: Mapping[str, str] = field(default_factory=dict)  # name -> path
    outputs: Mapping[str, str] = field(default_factory=dict)  # name of a question (see probe) -> what was answered
    environment: Mapping[str, str] = field(default_factory=dict)
    memlock: int | None = None  # bytes that this process may lock in RAM; None: no limit
    cpus: int = 1  # that this process may run on

    def text(self, path: str) -> str:
        return self.files.get(path, "").strip()

    def number(self, path: str) -> int | None:
        try:
            return int(self.text(path), 0)
        except ValueError:
            return None

    def matching(self, pattern: str) -> list[str]:
        """Files that were read and paths that are there."""
        return sorted(path for path in {*self.files, *self.paths} if fnmatchcase(path, pattern))
