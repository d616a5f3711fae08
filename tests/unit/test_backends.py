"""What each backend is built with on each machine, which one is chosen, and what is said where one cannot be built."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.machines import MACHINES, Recorded, snapshot_of
from fakes.machines.parts import AVX2, GIB, ZEN4, base, card, kfd, nvidia_smi, rocm, vulkan_packages, vulkaninfo, x86
from helpers import ROOT

from pyrun.build import builder
from pyrun.build.backend import addition, check_buildable
from pyrun.build.builder import BuildRequest, build
from pyrun.build.choose import choose_backend, standings
from pyrun.cli.backends import Settled, device_warning
from pyrun.cli.main import main
from pyrun.errors import UserError
from pyrun.home import Home, version
from pyrun.machine.backends import runtime_environment
from pyrun.machine.describe import describe
from pyrun.machine.names import BACKENDS
from pyrun.machine.rocm import find_rocm
from pyrun.machine.snapshot import Snapshot
from pyrun.machine.vulkan import are_headers_old
from pyrun.upstream.pin import Pin
from pyrun.upstream.source import Source

GOLDEN = ROOT / "tests" / "golden" / "configure.txt"
SDK = "/home/u/llama-run/deps/rocm"
PHOENIX = card(1, 0x1002, 0x15BF, 4 * GIB, 13 * GIB) | kfd({0x15BF: 110003})
RADV = {"vulkaninfo": vulkaninfo((0x1002, 0x15BF, "INTEGRATED_GPU", "AMD Radeon 780M (RADV PHOENIX)", "radv"))}
ZEN4_CPU = x86("AMD Ryzen 7 7840U w/ Radeon 780M Graphics", 8, ZEN4)


def _without(files: dict[str, str], start: str) -> dict[str, str]:
    return {name: text for name, text in files.items() if not name.startswith(start)}


HALO = MACHINES["Strix Halo, 128 GB"]
VARIANTS = (
    Recorded(
        "7840U, ROCm of the distribution without its chip",
        base(ZEN4_CPU, 27.2, "fedora") | PHOENIX | rocm("gfx1030", "gfx1100", root="/usr"),
        programs=("c++", "hipcc"),
    ),
    replace(
        HALO,
        name="Strix Halo, ROCm in deps",
        files=_without(dict(HALO.files), "/opt/rocm") | rocm("gfx1151", root=SDK, version="7.9.0"),
        programs=("c++", "glslc"),
        rocm_sdk=SDK,
    ),
    Recorded(
        "Debian 12 with old Vulkan headers",
        base(ZEN4_CPU, 27.2, "debian") | PHOENIX | vulkan_packages((1, 3, 239)) | {"/usr/lib/apt/apt-helper": ""},
        RADV,
        programs=("c++", "glslc"),
    ),
    Recorded(
        "Ubuntu with old Vulkan headers",
        base(ZEN4_CPU, 27.2, "ubuntu") | PHOENIX | vulkan_packages((1, 3, 204)) | {"/usr/lib/apt/apt-helper": ""},
        RADV,
        programs=("c++", "glslc"),
    ),
    Recorded(
        "two NVIDIA cards",
        base(x86("AMD Ryzen 9 5950X 16-Core Processor", 16, AVX2), 61.9, "arch"),
        {"nvidia-smi": nvidia_smi(("RTX 5090", "32607 MiB", "12.0"), ("RTX 3090", "24576 MiB", "8.6"))},
        programs=("c++", "nvcc", "glslc"),
    ),
    Recorded(
        "NVIDIA card, no CUDA, Vulkan there",
        base(x86("AMD Ryzen 9 5950X 16-Core Processor", 16, AVX2), 61.9, "debian") | vulkan_packages(),
        {
            "nvidia-smi": nvidia_smi(("RTX 3090", "24576 MiB", "8.6")),
            "vulkaninfo": vulkaninfo((0x10DE, 0x2204, "DISCRETE_GPU", "RTX 3090", "NVIDIA")),
        },
        programs=("c++", "glslc"),
    ),
)
EVERY = (*MACHINES.values(), *VARIANTS)


def variant(name: str, root: Path, **environment: str) -> Snapshot:
    return snapshot_of(next(machine for machine in EVERY if machine.name == name), root, environment)


def table(folder: Path) -> str:
    blocks = []
    for number, recorded in enumerate(EVERY):
        snapshot = snapshot_of(recorded, folder / str(number))
        machine = describe(snapshot)
        backend, why = choose_backend(machine, standings(snapshot, machine, []))
        lines = [recorded.name, f"  auto    {backend}: {why}"]
        lines += [f"  {name:7} {_configured(snapshot, name)}" for name in BACKENDS]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _configured(snapshot: Snapshot, backend: str) -> str:
    """The part of cmake's arguments that the machine decides, and the variables that it is run with."""
    machine = describe(snapshot)
    headers = Path("/deps/include") if are_headers_old(snapshot) else None
    try:
        check_buildable(snapshot, machine, backend)
    except UserError as error:
        return f"{error.message} [{error.hint}]"
    added = addition(snapshot, machine, backend, vulkan_headers=headers)
    words = [f"-D{name}={value}" for name, value in added.definitions.items()]
    at_run = runtime_environment(machine, backend)
    run = f" (run with {' '.join(f'{n}={v}' for n, v in at_run.items())})" if at_run else ""
    return " ".join([*(f"{name}={value}" for name, value in added.environment.items()), "cmake", *words]) + run


def test_backend_is_configured_as_the_table_says(tmp_path: Path) -> None:
    made = table(tmp_path)
    print(made)
    assert made == GOLDEN.read_text(encoding="utf-8"), f"if every change is meant, write what is printed to {GOLDEN}"


@pytest.mark.parametrize(
    ("name", "built", "may_build", "expected"),
    [
        ("7840U handheld, 32 GB", [], True, "vulkan"),
        ("7840U handheld, 32 GB", ["cpu"], True, "vulkan"),  # it can be built, and is worth the minutes
        ("7840U handheld, 32 GB", ["cpu"], False, "cpu"),
        ("7840U handheld, 32 GB", [], False, "cpu"),  # for the message that it is not built
        ("Steam Deck, 16 GB", [], True, "cpu"),  # nothing to build with
        ("Steam Deck, 16 GB", ["vulkan"], True, "vulkan"),  # built elsewhere, or before an update took the compiler
        ("Strix Halo, 128 GB", ["rocm"], True, "vulkan"),  # ROCm is optional
        ("Strix Halo, 128 GB", ["rocm"], False, "rocm"),
        ("5800H laptop, 32 GB", [], True, "cpu"),  # its Vulkan driver is missing
        ("RTX 4060 laptop, 32 GB", [], True, "cpu"),
        ("RTX 4060 laptop, 32 GB", ["vulkan"], True, "vulkan"),
        ("NVIDIA card, no CUDA, Vulkan there", [], True, "vulkan"),
        ("H200 server", [], True, "cuda"),
        ("no GPU, container of 2 CPUs", ["vulkan"], True, "cpu"),  # a driver that is the processor itself
        ("Apple M2 Pro, 32 GB", [], True, "cpu"),
    ],
)
def test_right_backend_is_chosen(tmp_path: Path, name: str, built: list[str], may_build: bool, expected: str) -> None:
    snapshot = variant(name, tmp_path)
    machine = describe(snapshot)
    backend, why = choose_backend(machine, standings(snapshot, machine, built), may_build=may_build)
    assert backend == expected and why


def test_choice_says_what_would_be_better(tmp_path: Path) -> None:
    snapshot = variant("RTX 4060 laptop, 32 GB", tmp_path)
    machine = describe(snapshot)
    _, why = choose_backend(machine, standings(snapshot, machine, []))
    assert why == "cuda would be better, and lacks the CUDA compiler: sudo apt install nvidia-cuda-toolkit"


def test_rocm_that_is_named_is_used(tmp_path: Path) -> None:
    files = dict(HALO.files) | rocm("gfx1151", root=SDK) | rocm("gfx1100", root="/mine")
    machine = replace(HALO, files=files, rocm_sdk=SDK)
    first, second = (find_rocm(snapshot_of(machine, tmp_path, e)) for e in ({}, {"ROCM_PATH": "/mine/"}))
    assert first and first.root == SDK
    assert second and second.root == "/mine" and second.compiler == "/mine/lib/llvm/bin/clang++"


def test_nvcc_outside_the_path_is_found(tmp_path: Path) -> None:
    machine = replace(MACHINES["H200 server"], programs=("c++",))
    nvcc = tmp_path / "usr" / "local" / "cuda" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.touch(mode=0o755)
    snapshot = snapshot_of(machine, tmp_path)
    check_buildable(snapshot, describe(snapshot), "cuda")
    added = addition(snapshot, describe(snapshot), "cuda").definitions
    assert added["CMAKE_CUDA_COMPILER"] == str(nvcc) and added["CUDAToolkit_ROOT"] == str(nvcc.parents[1])


def test_vulkan_sdk_of_the_user_is_used(tmp_path: Path) -> None:
    old = vulkan_packages((1, 3, 204))
    new = {f"/sdk{name.removeprefix('/usr')}": text for name, text in vulkan_packages((1, 4, 321)).items()}
    machine = Recorded("x", base(ZEN4_CPU, 27.2, "ubuntu") | PHOENIX | old | new, RADV, programs=("c++", "glslc"))
    assert are_headers_old(snapshot_of(machine, tmp_path))
    assert not are_headers_old(snapshot_of(machine, tmp_path, {"VULKAN_SDK": "/sdk"}))


@pytest.mark.parametrize(("backend", "left_out"), [("cuda", "CMAKE_CUDA_ARCHITECTURES"), ("rocm", "AMDGPU_TARGETS")])
def test_build_for_another_machine_is_for_its_card(tmp_path: Path, backend: str, left_out: str) -> None:
    machine = Recorded("x", base(ZEN4_CPU, 27.2, "arch") | rocm("gfx1100"), programs=("c++", "nvcc"))
    snapshot = snapshot_of(machine, tmp_path)
    with pytest.raises(UserError, match="cannot be built here: no (AMD|NVIDIA) graphics"):
        check_buildable(snapshot, describe(snapshot), backend)
    check_buildable(snapshot, describe(snapshot), backend, "zen4")
    added = addition(snapshot, describe(snapshot), backend, "zen4").definitions
    assert left_out not in added and added["GGML_NATIVE"] == "OFF" and added["GGML_AVX512_BF16"] == "ON"
    assert added["GGML_RPC_RDMA"] == "OFF", "it must not need what only this machine has"
    assert "GGML_RPC_RDMA" not in addition(snapshot, describe(snapshot), "cpu").definitions


def test_card_of_another_machine_can_be_named(tmp_path: Path) -> None:
    machine = Recorded("x", base(ZEN4_CPU, 27.2, "arch") | rocm("gfx1100"))
    snapshot = snapshot_of(machine, tmp_path, {"LLAMA_GFX_ARCH_OVERRIDE": "gfx1151,gfx1100"})
    check_buildable(snapshot, describe(snapshot), "rocm", "zen4")
    assert addition(snapshot, describe(snapshot), "rocm", "zen4").definitions["AMDGPU_TARGETS"] == "gfx1100;gfx1151"


def test_old_rocm_is_found_out_before_cmake(tmp_path: Path) -> None:
    hip = {"/usr/lib/x86_64-linux-gnu/cmake/hip/hip-config-version.cmake": 'set(PACKAGE_VERSION "5.7.31921")\n'}
    files = base(ZEN4_CPU, 27.2, "debian") | PHOENIX | rocm("gfx1100", root="/usr") | hip
    snapshot = snapshot_of(Recorded("x", files, programs=("c++", "hipcc")), tmp_path)
    with pytest.raises(UserError, match=r"missing: ROCm 6.1 or newer \(here is 5.7.31921\)") as caught:
        check_buildable(snapshot, describe(snapshot), "rocm")
    assert "AMD's own packages" in (caught.value.hint or "") and "--rocm-sdk" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("target", "message"), [("graviton3", "another kind of processor"), ("z80", "neither an instruction set nor")]
)
def test_right_target_is_built_for(tmp_path: Path, target: str, message: str) -> None:
    snapshot = variant("7840U handheld, 32 GB", tmp_path)
    with pytest.raises(UserError, match=message):
        addition(snapshot, describe(snapshot), "cpu", target)


def test_override_of_the_processor_is_built_for(tmp_path: Path) -> None:
    snapshot = variant("7840U handheld, 32 GB", tmp_path, LLAMA_CPU_ISA_OVERRIDE="avx2")
    added = addition(snapshot, describe(snapshot), "vulkan").definitions
    assert added["GGML_NATIVE"] == "OFF" and added["GGML_AVX2"] == "ON" and added["GGML_AVX512"] == "OFF"


# A whole build with tools that only write down how they were called.

PIN = Pin("p", "1", "p-1.tar.gz", "0" * 64, "vendor", "r", "0123456789" * 4, "f" * 40)
RECORDER = """#!/bin/sh
env | grep -E '^(ROCM_PATH|HIP_.*|CXX)=' | sort > "$RECORD.$(basename "$0").env"
printf '%s\\n' "$@" > "$RECORD.$(basename "$0").arguments"
case $(basename "$0") in ninja) mkdir -p "$2/bin" && touch "$2/bin/llama-server" "$2/build.ninja" ;; esac
"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in ("cmake", "ninja", "c++"):
        (folder / name).write_text(RECORDER)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("RECORD", str(tmp_path / "record"))
    monkeypatch.setattr("pyrun.build.toolchain.sys.executable", str(folder / "python"))
    monkeypatch.setattr(
        "pyrun.build.toolchain.shutil.which", lambda name: str(folder / name) if name == "c++" else None
    )
    monkeypatch.setattr(
        "pyrun.build.builder.source.prepare",
        lambda home, origin, clean: Source(home.source, PIN, "c0ffee", edited=False),
    )
    return folder


def record(tmp_path: Path, tool: str, what: str) -> list[str]:
    return (tmp_path / f"record.{tool}.{what}").read_text().splitlines()


def test_rocm_build_is_called_by_its_name(tmp_path: Path, tools: Path) -> None:
    home = Home(tmp_path / "home")
    home.kernels.mkdir(parents=True)
    snapshot = variant("Strix Halo, ROCm in deps", tmp_path / "machine")
    result = build(home, BuildRequest("rocm", web_ui=False), snapshot)
    assert result.changed and result.server == home.root / "llama.cpp" / "build" / "rocm" / "bin" / "llama-server"
    assert record(tmp_path, "cmake", "arguments") == [
        "--fresh",
        "-S",
        str(home.source),
        "-B",
        str(home.build("rocm")),
        "-G",
        "Ninja",
        "-DCMAKE_BUILD_TYPE=Release",
        f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}",
        "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
        "-DCMAKE_INSTALL_RPATH=$ORIGIN",
        "-DCMAKE_INSTALL_RPATH_USE_LINK_PATH=ON",
        "-DLLAMA_BUILD_APP=OFF",
        "-DLLAMA_BUILD_EXAMPLES=OFF",
        "-DLLAMA_BUILD_TESTS=OFF",
        "-DGGML_RPC=ON",
        "-DLLAMA_BUILD_COMMIT=012345678",
        "-DLLAMA_BUILD_NUMBER=0",
        "-DLLAMA_BUILD_UI=OFF",
        "-DLLAMA_UI_GZIP=OFF",
        "-DLLAMA_USE_PREBUILT_UI=OFF",
        f"-DLLAMA_RUN_KERNELS={home.kernels}",
        f"-DLLAMA_RUN_VERSION={version()}",
        f"-DLLAMA_RUN_PIN={PIN.commit}",
        "-DGGML_NATIVE=ON",
        "-DGGML_HIP=ON",
        "-DAMDGPU_TARGETS=gfx1151",
        f"-DCMAKE_PREFIX_PATH={SDK}",
        f"-DCMAKE_HIP_FLAGS=--rocm-path={SDK}",
        f"-DCMAKE_HIP_COMPILER={SDK}/lib/llvm/bin/clang++",
    ]
    expected = [f"CXX={tools / 'c++'}", f"HIP_DEVICE_LIB_PATH={SDK}/lib/llvm/amdgcn/bitcode"]
    expected += [f"HIP_PATH={SDK}", "HIP_PLATFORM=amd", f"ROCM_PATH={SDK}"]
    assert record(tmp_path, "cmake", "env") == expected
    assert set(expected[1:]) <= set(record(tmp_path, "ninja", "env"))
    assert record(tmp_path, "ninja", "arguments") == ["-C", str(home.build("rocm")), "llama-server", "ggml-rpc-server"]
    # Nothing has changed; then another SDK is there.
    assert not build(home, BuildRequest("rocm", web_ui=False), snapshot).changed
    home.rocm_sdk.mkdir(parents=True)
    (home.rocm_sdk / "llama-run-sdk.json").write_text(json.dumps({"file": "f", "sha256": "ab", "version": "8"}))
    assert build(home, BuildRequest("rocm", web_ui=False), snapshot).changed


def test_build_for_another_machine_leaves_this_ones(tmp_path: Path, tools: Path) -> None:
    home = Home(tmp_path / "home")
    home.kernels.mkdir(parents=True)
    snapshot = variant("7840U handheld, 32 GB", tmp_path / "machine")
    ours = build(home, BuildRequest("cpu"), snapshot).server
    theirs = build(home, BuildRequest("cpu", target="zen3"), snapshot).server
    assert ours != theirs and theirs == home.build("cpu-zen3") / "bin" / "llama-server"
    assert not build(home, BuildRequest("cpu"), snapshot).changed


def test_old_vulkan_headers_are_not_compiled_with(tmp_path: Path, tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path / "home")
    home.kernels.mkdir(parents=True)
    monkeypatch.setattr(builder, "ensure_vulkan_headers", lambda deps, found: deps / found / "include")
    build(home, BuildRequest("vulkan"), variant("Debian 12 with old Vulkan headers", tmp_path / "machine"))
    assert f"-DVulkan_INCLUDE_DIR={home.deps}/1.3.239/include" in record(tmp_path, "cmake", "arguments")
    build(home, BuildRequest("vulkan"), variant("7840U handheld, 32 GB", tmp_path / "other"))
    assert not any("Vulkan_INCLUDE_DIR" in word for word in record(tmp_path, "cmake", "arguments"))


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    home = Home(tmp_path / "home")
    home.kernels.mkdir(parents=True)
    home.pin.parent.mkdir(parents=True)
    home.pin.write_text((ROOT / "llama.cpp" / "upstream.toml").read_text())
    monkeypatch.setenv("LLAMA_RUN_HOME", str(home.root))
    return home


def use(monkeypatch: pytest.MonkeyPatch, snapshot: Snapshot) -> None:
    for module in ("pyrun.build.builder", "pyrun.cli.backends", "pyrun.cli.build"):
        monkeypatch.setattr(f"{module}.take_snapshot", lambda home, backend: snapshot)


def test_all_goes_on_past_what_cannot_be_built(
    tmp_path: Path, tools: Path, clone: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, variant("7840U handheld, 32 GB", tmp_path / "machine"))
    main(["build", "--backend", "all"])
    out, err = capsys.readouterr()
    assert out.split() == [str(clone.server_binary(name)) for name in ("cpu", "vulkan")]
    assert "left out: rocm cannot be built here; missing: the HIP compiler, hipBLAS and rocBLAS" in err
    assert "sudo pacman -S rocm-hip-sdk" in err
    assert "left out: cuda cannot be built here: no NVIDIA graphics" in err


def test_missing_toolchain_is_found_out_before_cmake(
    tmp_path: Path, tools: Path, clone: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, variant("Strix Point, 32 GB", tmp_path / "machine"))
    with pytest.raises(SystemExit):
        main(["build", "--backend", "rocm"])
    err = capsys.readouterr().err
    assert "error: rocm cannot be built here; missing: the HIP compiler, hipBLAS and rocBLAS" in err
    assert "hint: sudo dnf install rocm-hip-devel hipblas-devel rocblas-devel; or, without a system install" in err
    assert not (tmp_path / "record.cmake.arguments").exists()


def test_card_without_its_driver_is_not_built_for(tmp_path: Path) -> None:
    machine = Recorded("x", base(ZEN4_CPU, 27.2, "debian") | card(0, 0x10DE, 0x28E0), programs=("c++", "nvcc"))
    snapshot = snapshot_of(machine, tmp_path)
    with pytest.raises(UserError, match="missing: NVIDIA's driver$") as caught:
        check_buildable(snapshot, describe(snapshot), "cuda")
    assert "sudo apt install nvidia-driver" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("name", "backend", "expected"),
    [
        ("7840U handheld, 32 GB", "vulkan", None),
        ("7840U handheld, 32 GB", "cpu", None),
        ("H200 server", "cuda", None),
        ("no GPU, container of 2 CPUs", "vulkan", "note: the only Vulkan device is the processor itself"),
        ("ARM server, Neoverse N1", "vulkan", "warning: no device for vulkan (none was found)"),
        ("ARM server, Neoverse N1", "cuda", "warning: no device for cuda (no NVIDIA graphics)"),
        ("5800H laptop, 32 GB", "vulkan", "warning: no device for vulkan (missing: a Vulkan driver)"),
    ],
)
def test_server_that_computes_on_the_processor_says_so(
    tmp_path: Path, name: str, backend: str, expected: str | None
) -> None:
    snapshot = variant(name, tmp_path)
    said = device_warning(Settled(backend, "", snapshot, describe(snapshot)))
    assert said is None if expected is None else said and said.startswith(expected)


def test_list_of_backends_hides_nothing(
    tmp_path: Path, tools: Path, clone: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, variant("Debian 12 with old Vulkan headers", tmp_path / "machine"))
    main(["build"])
    capsys.readouterr()
    main(["--list-backends"])
    packages = "sudo apt install hipcc libhipblas-dev librocblas-dev; llama.cpp needs ROCm 6.1 or newer; "
    packages += "where your release has an older one, take AMD's packages"
    assert capsys.readouterr().out.splitlines() == [
        "cpu     built      avx512_bf16, 8 threads",
        "vulkan  buildable  AMD Radeon 780M (RADV PHOENIX), a build fetches newer headers",
        f"rocm    missing    gfx1103 (KFD); missing: the HIP compiler, hipBLAS and rocBLAS; {packages}",
        "cuda    no-device  no NVIDIA graphics",
        "auto is vulkan: the stable one on gfx1103; ROCm is optional",
    ]


# scripts/rebuild, with a launcher that writes down how it was called.

LAUNCHER = """#!/bin/sh
case $1 in
    --list-backends) cat backends ;;
    *) echo "$@" >> calls ;;
esac
"""


@pytest.mark.parametrize(
    ("arguments", "vulkan", "calls"),
    [
        ("", "buildable  AMD Radeon 780M (RADV PHOENIX)", ["--backend vulkan"]),
        ("", "built      AMD Radeon 780M (RADV PHOENIX)", ["--backend vulkan"]),
        ("", "missing    AMD Radeon 780M; missing: glslc", ["--backend vulkan"]),  # which says what to install
        ("", "no-device", ["--backend cpu"]),
        ("", "buildable  the only device is the processor itself, and slow", ["--backend cpu"]),
        ("--rocm", "no-device", ["--backend rocm"]),
        ("--cuda --rebuild", "no-device", ["--backend cuda --clean"]),
        ("--both --rebuild -j 2", "buildable", ["--backend vulkan --clean -j 2", "--backend rocm --clean -j 2"]),
        ("-j 2 --rocm --no-web-ui", "buildable", ["--backend rocm -j 2 --no-web-ui"]),
    ],
)
def test_rebuild_builds_the_same(tmp_path: Path, arguments: str, vulkan: str, calls: list[str]) -> None:
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "rebuild", tmp_path / "scripts")
    (tmp_path / "llama-run").write_text(LAUNCHER)
    (tmp_path / "llama-run").chmod(0o755)
    (tmp_path / "backends").write_text(f"cpu     built\nvulkan  {vulkan}\nauto is vulkan: why\n")
    subprocess.run([tmp_path / "scripts" / "rebuild", *arguments.split()], check=True, cwd="/", capture_output=True)
    assert (tmp_path / "calls").read_text().splitlines() == [f"build {call}" for call in calls]


def test_checkout_without_the_native_module_can_build(tmp_path: Path) -> None:
    """As on a machine where nothing can be installed: the modules as they lie, and no compiled one."""
    shutil.copytree(ROOT / "pyrun", tmp_path / "pyrun", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (tmp_path / "llama.cpp").mkdir()
    shutil.copy(ROOT / "llama.cpp" / "upstream.toml", tmp_path / "llama.cpp")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    # -S leaves out what an installed llama-run puts into the way of imports.
    site = sysconfig.get_path("purelib")
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{tmp_path}{os.pathsep}{site}", "HOME": str(tmp_path)}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-S", "-m", "pyrun", *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)

    assert "--rocm-sdk" in run("build", "--help").stdout
    assert "auto is " in run("--list-backends").stdout
    assert "--cache-ssd" in run("--server", "--dry-run").stdout
    assert "the native module is not built for this Python" in run("cache", "ls").stderr
