"""Calls git on the source tree, deaf to the user's own settings and to the repository around it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyrun.errors import UserError

# The same content gives the same commit on every machine, so that commits can be compared instead of stamps.
IDENTITY = {
    "GIT_AUTHOR_NAME": "llama-run",
    "GIT_AUTHOR_EMAIL": "llama-run@localhost",
    "GIT_AUTHOR_DATE": "2000-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "llama-run",
    "GIT_COMMITTER_EMAIL": "llama-run@localhost",
    "GIT_COMMITTER_DATE": "2000-01-01T00:00:00Z",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}


@dataclass(frozen=True)
class GitResult:
    code: int
    out: str
    err: str


class GitError(UserError):
    """A git command that should not fail did."""


@dataclass(frozen=True)
class Git:
    """A repository in `tree/.git` with its work tree in `tree`."""

    tree: Path

    def run(self, *arguments: str, env: Mapping[str, str] | None = None) -> str:
        result = self.attempt(*arguments, env=env)
        if result.code != 0:
            raise GitError(
                f"`git {' '.join(arguments)}` failed in {self.tree}:\n{result.err.strip()}",
                "`llama-run build --clean` starts from a fresh source tree",
            )
        return result.out.rstrip("\n")

    def attempt(self, *arguments: str, env: Mapping[str, str] | None = None) -> GitResult:
        if shutil.which("git") is None:
            raise UserError("git is not installed; the patches are applied with it", "install the package `git`")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        result = subprocess.run(
            ["git", "-c", "core.autocrlf=false", "-c", "core.fsync=none", "-c", "gc.auto=0", *arguments],
            cwd=self.tree,
            env={**inherited, **IDENTITY, "GIT_DIR": str(self.tree / ".git"), **(env or {})},
            capture_output=True,
            text=True,
            errors="surrogateescape",
        )
        return GitResult(result.returncode, result.stdout, result.stderr)

    def commit_of(self, ref: str) -> str | None:
        result = self.attempt("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
        return result.out.strip() if result.code == 0 else None
