"""Fetches a package file by name through pip, and trusts it only by its hash."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

from pyrun import console
from pyrun.errors import UserError

CHANGED = "if it happens twice, the package was changed: do not use it"


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def fetch(package: str, version: str, file: str, sha256: str, folder: Path) -> Path:
    """Gives the package's file in the folder, downloaded if it is not there, with its hash checked either way."""
    path = folder / file
    if not path.exists():
        _download(package, version, sha256, folder, source=file.endswith(".tar.gz"))
    if not path.exists():
        raise UserError(
            f"pip fetched {package} {version}, but not as {file}",
            f"look into {folder} and at the pin in llama.cpp/upstream.toml",
        )
    actual = sha256_of(path)
    if actual != sha256:
        raise UserError(
            f"{path} is not what the pin names\n  expected sha256 {sha256}\n  found           {actual}",
            f"delete that file and run again to download it anew; {CHANGED}",
        )
    return path


def _download(package: str, version: str, sha256: str, folder: Path, *, source: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    console.say(f"fetching {package} {version} with pip")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.write(f"{package}=={version} --hash=sha256:{sha256}\n")
        requirements.flush()
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check"]
        command += ["--require-hashes", "--dest", str(folder), "--requirement", requirements.name]
        command += ["--no-binary" if source else "--only-binary", package]
        # pip draws its bar on stdout; ours is kept for data.
        shown = console.err.file if console.err.is_terminal else subprocess.PIPE
        result = subprocess.run(command, stdout=shown, stderr=subprocess.PIPE, text=True)
    if result.returncode != 0:
        raise UserError(f"pip could not fetch {package} {version}:\n{_last_lines(result.stderr)}", _hint(result.stderr))


def _last_lines(text: str, n: int = 6) -> str:
    return "\n".join("  " + line for line in text.strip().splitlines()[-n:])


def _hint(stderr: str) -> str:
    if "No space left" in stderr:
        return "free some disk space and run again"
    if "DO NOT MATCH THE HASHES" in stderr:
        return f"what was downloaded is not what the pin names; {CHANGED}"
    return "check the network, or pip's settings, and run again"
