"""./llama-run on machines that lack something, and from odd places."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import ROOT

TOOLS = ("sh", "cat", "cksum", "dirname", "find", "mkdir", "pwd", "readlink", "rm", "sort", "tail")


@pytest.fixture
def bare_machine(tmp_path: Path) -> Path:
    """A folder for PATH with the basic tools, but neither Python nor a compiler; a clone lies beside it."""
    clone = tmp_path / "clone"
    for folder in ("kernels", "pyrun", "benchmarks"):
        (clone / folder).mkdir(parents=True)
    (clone / "pyproject.toml").touch()
    shutil.copy(ROOT / "llama-run", clone)
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in TOOLS:
        found = shutil.which(name)
        assert found, name
        (tools / name).symlink_to(found)
    return tools


def add_tool(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def bootstrap(tools: Path, clone: str = "clone", extras: str = "") -> subprocess.CompletedProcess[str]:
    script = tools.parent / clone / "llama-run"
    environment = {"PATH": str(tools), "LLAMA_RUN_EXTRAS": extras}
    return subprocess.run([str(script), "--version"], env=environment, capture_output=True, text=True)


def test_missing_python_is_explained(bare_machine: Path) -> None:
    result = bootstrap(bare_machine)
    assert result.returncode == 1
    assert "error: Python 3.10 or newer was not found" in result.stderr
    assert "Debian/Ubuntu: python3 python3-venv · Fedora: python3 · Arch/SteamOS: python" in result.stderr


def test_old_python_is_not_used(bare_machine: Path) -> None:
    add_tool(bare_machine, "python3", "exit 1")  # its answer to the version check
    assert "Python 3.10 or newer was not found" in bootstrap(bare_machine).stderr


def test_missing_venv_module_is_explained(bare_machine: Path) -> None:
    add_tool(bare_machine, "python3", 'case "$2" in *venv*) exit 1 ;; esac')
    result = bootstrap(bare_machine)
    assert result.returncode == 1 and "has no venv module" in result.stderr
    assert "Debian/Ubuntu: python3-venv" in result.stderr


def test_missing_compiler_is_explained(bare_machine: Path) -> None:
    add_tool(bare_machine, "python3", "exit 0")
    result = bootstrap(bare_machine)
    assert result.returncode == 1 and "error: no C++17 compiler found" in result.stderr
    assert "Debian/Ubuntu: g++ · Fedora: gcc-c++ · Arch/SteamOS: gcc" in result.stderr


def test_failed_install_shows_its_reason(bare_machine: Path) -> None:
    add_tool(bare_machine, "c++", "exit 0")
    add_tool(bare_machine, "python3", 'if [ "$1" = -m ]; then echo no room for a venv; exit 1; fi')
    result = bootstrap(bare_machine)
    assert result.returncode == 1 and "no room for a venv" in result.stderr and "install.log" in result.stderr


def test_another_folder_or_a_link_does_not_confuse_it(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(os.path.relpath(ROOT / "llama-run", tmp_path))
    result = subprocess.run([str(link), "--version"], cwd=tmp_path, capture_output=True, text=True)
    assert result.stdout.startswith("llama-run, version ") and result.stderr == ""


# Stands for every Python: makes an environment whose programs, as real ones do, name the folder they were made in.
INSTALLER = """
case "$1 $2" in
    "-m venv")
        rm -rf "$4"/*
        mkdir -p "$4/bin"; printf '#!/bin/sh\\n. %s\\n' "$0" >"$4/bin/python"; chmod +x "$4/bin/python" ;;
    "-m pip") made=${0%/*}/llama-run; printf '#!/bin/sh\\necho runs %s %s\\n' "$PWD" "$6" >"$made"; chmod +x "$made" ;;
esac
"""


def add_installer(tools: Path) -> None:
    (tools / "chmod").symlink_to(shutil.which("chmod") or "")
    add_tool(tools, "c++", "exit 0")
    add_tool(tools, "python3", INSTALLER)


@pytest.mark.parametrize("take", [shutil.copytree, shutil.move])
def test_clone_elsewhere_has_an_environment_of_its_own(
    bare_machine: Path, take: Callable[[Path, Path], object]
) -> None:
    add_installer(bare_machine)
    old, new = bare_machine.parent / "clone", bare_machine.parent / "elsewhere"
    assert bootstrap(bare_machine).stdout == f"runs {old} .[clone]\n"
    take(old, new)
    first, second = bootstrap(bare_machine, "elsewhere"), bootstrap(bare_machine, "elsewhere")
    assert first.stdout == second.stdout == f"runs {new} .[clone]\n", first.stderr
    assert f"this clone was copied or moved from {old}: making its environment again" in first.stderr
    assert second.stderr == "", "once is enough"


def test_extras_that_were_asked_for_once_are_installed_with_every_later_version(bare_machine: Path) -> None:
    add_installer(bare_machine)
    clone = bare_machine.parent / "clone"
    assert bootstrap(bare_machine).stdout == f"runs {clone} .[clone]\n"
    assert bootstrap(bare_machine, extras="tools").stdout == f"runs {clone} .[clone,tools]\n"
    again = bootstrap(bare_machine)
    assert (again.stdout, again.stderr) == (f"runs {clone} .[clone,tools]\n", "")
    (clone / "pyproject.toml").write_text("# a later version")
    later = bootstrap(bare_machine)
    assert later.stdout == f"runs {clone} .[clone,tools]\n"
    assert "installing" in later.stderr


@pytest.mark.parametrize("is_broken", [False, True])
def test_what_a_linked_environment_leads_to_is_left_alone(bare_machine: Path, is_broken: bool) -> None:
    add_installer(bare_machine)
    venv, other = bare_machine.parent / "clone" / ".venv", bare_machine.parent / "other"
    venv.symlink_to(other)
    if not is_broken:
        other.mkdir()
        (other / "precious").touch()
    result = bootstrap(bare_machine)
    assert result.stdout == f"runs {venv.parent} .[clone]\n", result.stderr
    assert not venv.is_symlink() and (other / "precious").exists() != is_broken


# As pip writes them: the second where the path is too long, or has spaces.
SHEBANGS = ("#!{}/bin/python3.12\n", '#!/bin/sh\n\'\'\'exec\' "{}/bin/python3.12" "$0" "$@"\n')


@pytest.mark.parametrize("shebang", SHEBANGS)
@pytest.mark.parametrize("stamp", [None, "installed by an earlier version\n"])
def test_environment_without_its_place_is_not_emptied_in_silence(
    bare_machine: Path, shebang: str, stamp: str | None
) -> None:
    add_installer(bare_machine)
    clone = bare_machine.parent / "clone"
    venv = clone / ".venv"
    bootstrap(bare_machine)
    for place, is_moved in ((clone, False), (Path("/some where/else"), True)):
        (venv / "precious").touch()
        (venv / ".llama-run-inputs").unlink()
        if stamp:
            (venv / ".llama-run-inputs").write_text(stamp)
        (venv / "bin" / "llama-run").write_text(shebang.format(place / ".venv"))
        result = bootstrap(bare_machine)
        assert result.stdout == f"runs {clone} .[clone]\n", result.stderr
        assert (f"copied or moved from {place}:" in result.stderr) == is_moved
        assert (venv / "precious").exists() != is_moved


def test_environment_made_by_hand_is_left_alone(bare_machine: Path) -> None:
    add_installer(bare_machine)
    clone = bare_machine.parent / "clone"
    bootstrap(bare_machine)
    (clone / ".venv" / "precious").touch()
    for name in (".llama-run-inputs", "bin/llama-run"):
        (clone / ".venv" / name).unlink()
    assert bootstrap(bare_machine).stdout == f"runs {clone} .[clone]\n" and (clone / ".venv" / "precious").exists()


def test_environment_whose_python_is_gone_is_made_anew(bare_machine: Path) -> None:
    add_installer(bare_machine)
    bootstrap(bare_machine)
    (bare_machine.parent / "clone" / ".venv" / "bin" / "python").unlink()
    first, second = bootstrap(bare_machine), bootstrap(bare_machine)
    assert "does not run: making its environment again" in first.stderr and second.stderr == ""


def test_environment_without_pip_is_made_anew(bare_machine: Path) -> None:
    add_installer(bare_machine)
    bootstrap(bare_machine, extras="tools")
    clone = bare_machine.parent / "clone"
    add_tool(clone / ".venv" / "bin", "python", '[ "$2" = "import pip" ] && exit 1\n[ "$2" != pip ]')
    (clone / "pyproject.toml").write_text("# a later version")
    first, second = bootstrap(bare_machine), bootstrap(bare_machine)
    assert "has no pip, or does not run: making its environment again" in first.stderr and second.stderr == ""
    assert first.stdout == second.stdout == f"runs {clone} .[clone,tools]\n"


def test_environment_whose_python_was_upgraded_is_made_anew(bare_machine: Path) -> None:
    add_installer(bare_machine)
    venv = bare_machine.parent / "clone" / ".venv"
    bootstrap(bare_machine)
    for version in ("3.9", "3.13"):
        shutil.copy(bare_machine / "python3", bare_machine / f"python{version}")
    (bare_machine / "python3").unlink()
    (bare_machine / "python3").symlink_to("python3.9")
    (venv / "lib" / "python3.9").mkdir(parents=True)
    (venv / "bin" / "python").unlink()
    (venv / "bin" / "python").symlink_to(bare_machine / "python3")
    assert bootstrap(bare_machine).stderr == ""
    (bare_machine / "python3").unlink()
    (bare_machine / "python3").symlink_to("python3.13")
    first, second = bootstrap(bare_machine), bootstrap(bare_machine)
    assert f"{venv} was made for another Python than python3.13: making its environment again" in first.stderr
    assert second.stderr == "" and first.stdout == second.stdout == f"runs {venv.parent} .[clone]\n"


def test_clone_whose_name_looks_like_extras_is_installed(bare_machine: Path) -> None:
    add_installer(bare_machine)
    clone = bare_machine.parent / "clone"
    clone.rename(clone.with_name("clone[x]"))
    result = bootstrap(bare_machine, "clone[x]")
    assert result.stdout == f"runs {clone}[x] .[clone]\n", result.stderr
