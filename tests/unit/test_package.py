"""The package as pip makes and installs it, in a new environment and away from the clone."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

CLONE = Path(__file__).resolve().parents[2]
NOT_NEEDED_TO_RUN = {"anthropic", "cmake", "huggingface-hub", "matplotlib", "mcp", "ninja", "openai"}


def run(*command: str | Path, home: Path | None = None) -> str:
    environment = {"HOME": str(home), "PATH": os.defpath} if home else None
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, cwd=home, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def files_of(*paths: str) -> set[str]:
    listed = run("git", "-C", CLONE, "ls-files", "--cached", "--others", "--exclude-standard", *paths).splitlines()
    return {path for path in listed if (CLONE / path).exists()}


@pytest.mark.timeout(900)  # it compiles
def test_the_wheel_carries_all_it_needs_and_runs_in_an_environment_of_its_own(tmp_path: Path) -> None:
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, CLONE)
    (wheel,) = tmp_path.glob("*.whl")
    carried = set(zipfile.ZipFile(wheel).namelist())
    built = {path for path in files_of("patches", "kernels", "llama.cpp/upstream.toml") if "/corpus/" not in path}
    assert files_of("pyrun") | {f"pyrun/included/{path}" for path in built} <= carried
    assert not [path for path in carried if path.startswith(("docs/", "models/", "tests/", "toys/"))]

    commands = tmp_path / "environment" / "bin"
    run(sys.executable, "-m", "venv", commands.parent)
    run(commands / "pip", "install", "--quiet", wheel)
    packages = run(commands / "pip", "list", "--format=freeze").lower().splitlines()
    assert not NOT_NEEDED_TO_RUN & {package.split("==")[0] for package in packages}

    home = tmp_path / "home"
    home.mkdir()
    assert run(commands / "llama-run", "--version", home=home).startswith("llama-run, version")
    where = run(commands / "llama-run", "where", home=home)
    assert str(home / ".local" / "share" / "llama-run") in where
    assert str(CLONE) not in where
    assert run(commands / "benchmark", "--help", home=home).startswith("Usage")
