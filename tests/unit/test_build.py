"""The pieces of a build: toolchain, cmake definitions, ninja's output, the lock, disk space."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from helpers import ROOT, wait_until

from pyrun.build import builder
from pyrun.build.configure import BuildSettings, cmake_definitions
from pyrun.build.digest import folder_digest
from pyrun.build.lock import build_lock
from pyrun.build.ninja import run_logged
from pyrun.build.toolchain import Toolchain, find_toolchain
from pyrun.errors import UserError
from pyrun.upstream.pin import Pin

PIN = Pin("p", "1", "p-1.tar.gz", "0" * 64, "vendor", "r", "0123456789" * 4, "f" * 40)
TOOLS = Toolchain(cxx="/usr/bin/c++", cmake="cmake", ninja="ninja", ccache=None, npm=None)


def write_ninja(folder: Path, *commands: str) -> list[str]:
    """A real build.ninja with one step per command."""
    steps = [f"rule r{i}\n  command = {command}\nbuild out{i}: r{i}\n" for i, command in enumerate(commands)]
    (folder / "build.ninja").write_text("\n".join(steps))
    return [find_toolchain().ninja, "-C", str(folder), "-j1"]


def test_progress_is_ninjas(tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    command = write_ninja(tmp_path, "touch out0", "touch out1", "touch out2")
    run_logged(command, tmp_path / "log", on_step=lambda done, total: steps.append((done, total)))
    assert steps == [(1, 3), (2, 3), (3, 3)]


def test_build_inside_the_build_does_not_set_the_progress_back(tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    command = write_ninja(tmp_path, "touch out0", "echo '[1/2] inner' && touch out1", *["true"] * 4)
    run_logged(command, tmp_path / "log", on_step=lambda done, total: steps.append((done, total)))
    assert [total for _, total in steps] == [6] * 6


def test_failure_shows_what_the_compiler_said(tmp_path: Path) -> None:
    command = write_ninja(tmp_path, "touch out0", "echo main.cpp:7: no such thing && false")
    with pytest.raises(UserError, match="ninja failed with exit code 1") as caught:
        run_logged(command, tmp_path / "log")
    assert "main.cpp:7: no such thing" in caught.value.message
    assert str(tmp_path / "log") in (caught.value.hint or "")


@pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="a small disk has to be mounted")
def test_full_disk_is_explained(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        with pytest.raises(UserError, match="No space left on device") as caught:
            run_logged(write_ninja(disk, "head -c 3000000 /dev/zero > out0"), tmp_path / "log")
        assert "the disk is full" in (caught.value.hint or "")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_build_of_a_copied_clone_can_be_configured(tmp_path: Path) -> None:
    tools = find_toolchain()
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    (old / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.24)\nproject(toy NONE)\n")
    make = {"CMAKE_MAKE_PROGRAM": tools.ninja}
    run_logged(builder.configure_command(tools, old, old / "build", make), tmp_path / "log")
    shutil.copytree(old, new)
    run_logged(builder.configure_command(tools, new, new / "build", make), tmp_path / "log")
    assert f"CMAKE_HOME_DIRECTORY:INTERNAL={new}\n" in (new / "build" / "CMakeCache.txt").read_text()


@pytest.mark.parametrize("name", ["CMakeLists.txt", "libllama/libllama.cmake", "server/common.cmake", "kvtier/store.h"])
def test_a_change_to_what_the_server_is_built_from_is_noticed(tmp_path: Path, name: str) -> None:
    kernels = tmp_path / "kernels"
    shutil.copytree(ROOT / "kernels", kernels)
    before = folder_digest(kernels, builder.SOURCES)
    (kernels / "notes.md").write_text("Nobody compiles this.\n")
    assert folder_digest(kernels, builder.SOURCES) == before
    (kernels / name).write_text((kernels / name).read_text() + "\n")
    assert folder_digest(kernels, builder.SOURCES) != before


def test_build_without_room_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a build needs about .* GB, and only .* GB are free"):
        builder._check_space(tmp_path, 1 << 60)


@pytest.mark.parametrize(("name", "message"), [(None, "no C\\+\\+17 compiler found"), ("nocc", "that CXX names")])
def test_missing_compiler_is_found_before_cmake(
    monkeypatch: pytest.MonkeyPatch, name: str | None, message: str
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    if name:
        monkeypatch.setenv("CXX", name)
    with pytest.raises(UserError, match=message) as caught:
        find_toolchain()
    assert "Debian/Ubuntu: g++" in (caught.value.hint or "")


def test_server_knows_its_pin() -> None:
    settings = BuildSettings("cpu", "1.2.3", PIN, Path("/k"), addition={"GGML_NATIVE": "ON"})
    definitions = cmake_definitions(settings, TOOLS)
    assert definitions["LLAMA_RUN_VERSION"] == "1.2.3"
    assert definitions["LLAMA_RUN_PIN"] == PIN.commit
    assert definitions["LLAMA_BUILD_COMMIT"] == PIN.short_commit
    assert definitions["LLAMA_BUILD_UI"] == "OFF"
    assert "CMAKE_CXX_COMPILER_LAUNCHER" not in definitions
    assert definitions["GGML_NATIVE"] == "ON"


@pytest.mark.parametrize(
    ("backend", "languages"),
    [("cpu", ["C", "CXX"]), ("vulkan", ["C", "CXX"]), ("rocm", ["C", "CXX", "HIP"]), ("cuda", ["C", "CXX", "CUDA"])],
)
def test_ccache_is_used(backend: str, languages: list[str]) -> None:
    settings = BuildSettings(backend, "1.2.3", PIN, Path("/k"), addition={})
    definitions = cmake_definitions(settings, Toolchain("c++", "cmake", "ninja", "/usr/bin/ccache", "npm"))
    used = [name for name, value in definitions.items() if value == "/usr/bin/ccache"]
    assert used == [f"CMAKE_{language}_COMPILER_LAUNCHER" for language in languages]


def test_second_build_says_whom_it_waits_for(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    script = textwrap.dedent(f"""
        from pathlib import Path
        from pyrun.build.lock import build_lock
        with build_lock(Path({str(lock)!r})):
            print("built", flush=True)
    """)
    with build_lock(lock):
        other = subprocess.Popen(
            [sys.executable, "-u", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert other.stderr is not None
        assert other.stderr.readline() == f"waiting for another build to end (pid {os.getpid()})\n"
        assert other.poll() is None
    out, _ = other.communicate(timeout=20)
    assert out == "built\n"


def test_lock_dies_with_a_killed_build(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    script = "from pathlib import Path; from pyrun.build.lock import build_lock; import time\n"
    script += f"with build_lock(Path({str(lock)!r})): print('held', flush=True); time.sleep(100)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        other.kill()
        wait_until(lambda: other.poll() is not None, 60, "it is dead")
    with build_lock(lock):
        pass
