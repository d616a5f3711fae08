"""Reads a machine: this is the one module here that touches files and runs programs.

Nothing is decided here, so that a recorded snapshot tells everything. A program that is missing, fails or hangs is the
same as one that says nothing.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pyrun.machine.snapshot import Snapshot

TIMEOUT_SECONDS = 5.0
MAX_FILE_BYTES = 1 << 20
HEAD_BYTES = 1 << 13

READ = (
    "/etc/os-release",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/cmdline",
    "/sys/class/dmi/id/product_name",
    "/sys/fs/cgroup/cpu.max",
    "/sys/fs/cgroup/memory.max",
    "/sys/module/ttm/parameters/pages_limit",
    "/sys/class/kfd/kfd/topology/nodes/*/properties",
    *(
        f"/sys/class/drm/card[0-9]*/device/{name}"
        for name in ("vendor", "device", "uevent", "mem_info_vram_total", "mem_info_gtt_total")
    ),
    *(f"/sys/class/power_supply/*/{name}" for name in ("type", "online", "status", "capacity", "scope")),
)

# These are read at their beginning, which says their version.
READ_HEADS = (
    "/usr/include/vulkan/vulkan_core.h",
    "/usr/local/include/vulkan/vulkan_core.h",
)

# These are looked for, and not read.
LOOK_FOR = (
    "/usr/lib/apt/apt-helper",
    "/dev/kfd",
    "/dev/dri/renderD*",
    "/usr/share/vulkan/icd.d/*.json",
    "/etc/vulkan/icd.d/*.json",
    "/usr/include/vulkan/vulkan.h",
    "/usr/local/include/vulkan/vulkan.h",
    "/usr/lib*/libvulkan.so",
    "/usr/lib/*/libvulkan.so",
    "/usr/share/cmake/SPIRV-Headers/SPIRV-HeadersConfig.cmake",
    "/usr/lib*/cmake/SPIRV-Headers/SPIRV-HeadersConfig.cmake",
    "/usr/lib/*/cmake/SPIRV-Headers/SPIRV-HeadersConfig.cmake",
    "/usr/local/*/cmake/SPIRV-Headers/SPIRV-HeadersConfig.cmake",
)
ROCM_ROOTS = ("/opt/rocm", "/opt/rocm-*", "/usr")
# These lie below a root of ROCm. The libraries have one file per chip, which says what they were built for.
ROCM_LOOK_FOR = (
    *(
        f"{libraries}/{name}"
        for libraries in ("lib", "lib64", "lib/*-linux-gnu")
        for name in ("cmake/hipblas/hipblas-config.cmake", "rocblas/library/TensileLibrary_lazy_gfx*.dat")
    ),
    "bin/hipcc",
    "llvm/bin/clang++",
    "lib/llvm/bin/clang++",
    "lib/llvm/amdgcn/bitcode",
    "amdgcn/bitcode",
)
ROCM_READ = (
    ".info/version",
    *(f"{libraries}/cmake/hip/hip-config-version.cmake" for libraries in ("lib", "lib64", "lib/*-linux-gnu")),
)
# These lie below a root of the Vulkan SDK.
SDK_LOOK_FOR = ("include/vulkan/vulkan.h", "lib/libvulkan.so", "*/cmake/SPIRV-Headers/SPIRV-HeadersConfig.cmake")
DEVICES = ("/dev/kfd", "/dev/dri/renderD*")

# A program may lie at these places apart from PATH.
PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "c++": (),
    "g++": (),
    "clang++": (),
    "ccache": (),
    "glslc": (),
    "vulkaninfo": (),
    "hipcc": ("/opt/rocm/bin",),
    "amd-smi": ("/opt/rocm/bin",),
    "rocm-smi": ("/opt/rocm/bin",),
    "nvidia-smi": ("/usr/lib/wsl/lib",),
    "nvcc": ("/usr/local/cuda/bin", "/opt/cuda/bin"),
    "sysctl": ("/usr/sbin", "/sbin"),
}

APPLE_KEYS = (
    "machdep.cpu.brand_string",
    "hw.model",
    "hw.memsize",
    "hw.physicalcpu",
    "hw.logicalcpu",
    "hw.perflevel0.physicalcpu",
    "hw.optional.arm.FEAT_DotProd",
    "hw.optional.arm.FEAT_I8MM",
    "iogpu.wired_limit_mb",
)

# Each question is put to a program, with these arguments.
GPU_QUESTIONS = {
    "amd-smi": ("amd-smi", "static", "--asic"),
    "rocm-smi": ("rocm-smi", "--showproductname"),
    "nvidia-smi": ("nvidia-smi", "--query-gpu=name,memory.total,compute_cap,driver_version", "--format=csv"),
    "vulkaninfo": ("vulkaninfo", "--summary"),
}
APPLE_QUESTIONS = {
    "sysctl": ("sysctl", *APPLE_KEYS),
    "pmset": ("pmset", "-g", "batt"),
}

# These are the overrides of describe.py, and where libraries may be.
VARIABLES = (
    "LLAMA_GFX_VERSION_OVERRIDE",
    "LLAMA_GFX_ARCH_OVERRIDE",
    "LLAMA_CPU_ISA_OVERRIDE",
    "LLAMA_HARDWARE_TIER_OVERRIDE",
    "HSA_OVERRIDE_GFX_VERSION",
    "ROCM_PATH",
    "VULKAN_SDK",
)

Runner = Callable[[Sequence[str]], str | None]
Finder = Callable[[str], str | None]


def run_command(command: Sequence[str]) -> str | None:
    """Gives what the program prints; None when it cannot be run, fails or takes too long."""
    try:
        done = subprocess.run(
            list(command), capture_output=True, timeout=TIMEOUT_SECONDS, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    # sysctl fails when one of many keys is unknown, and answers the others all the same.
    if done.returncode != 0 and Path(command[0]).name != "sysctl":
        return None
    return done.stdout.decode("utf-8", "replace")


def probe(
    root: Path = Path("/"),
    run: Runner = run_command,
    find: Finder = shutil.which,
    environment: Mapping[str, str] | None = None,
    *,
    gpus: bool = True,
    rocm_sdk: str | Path | None = None,
    system: str | None = None,
    arch: str | None = None,
) -> Snapshot:
    """Reads the machine below root. Without gpus, no program is asked about graphics cards, which may take a second.

    At `rocm_sdk` a ROCm may lie apart from the usual places.
    """
    system = system or platform.system()
    environment = os.environ if environment is None else environment
    rocm_roots = [str(r) for r in (*ROCM_ROOTS, rocm_sdk, environment.get("ROCM_PATH", "").rstrip("/")) if r]
    sdk = environment.get("VULKAN_SDK", "").rstrip("/")
    places = {**PROGRAMS, **({"glslc": (f"{sdk}/bin",)} if sdk else {})}
    programs = {name: path for name, folders in places.items() if (path := _find(root, name, folders, find))}
    questions = {**(GPU_QUESTIONS if gpus else {}), **(APPLE_QUESTIONS if system == "Darwin" else {})}
    patterns = [*LOOK_FOR, *(f"{r}/{name}" for r in rocm_roots for name in ROCM_LOOK_FOR)]
    patterns += [f"{sdk}/{name}" for name in SDK_LOOK_FOR] if sdk else []
    found = {name: path for pattern in patterns for name, path in _glob(root, pattern)}
    heads = [*READ_HEADS, *([f"{sdk}/include/vulkan/vulkan_core.h"] if sdk else [])]
    read = {name: path for r in rocm_roots for pattern in ROCM_READ for name, path in _glob(root, f"{r}/{pattern}")}
    read |= {name: path for pattern in READ for name, path in _glob(root, pattern)}
    files = {name: text for name, path in read.items() if (text := _read(path))}
    files |= {n: text for head in heads for n, path in _glob(root, head) if (text := _read(path, HEAD_BYTES))}
    return Snapshot(
        system=system,
        arch=arch or platform.machine(),
        files=files,
        paths=frozenset(found),
        usable=frozenset(
            name for pattern in DEVICES for name, path in _glob(root, pattern) if os.access(path, os.R_OK | os.W_OK)
        ),
        programs=programs,
        outputs=_ask(questions, programs, run),
        environment={name: environment[name] for name in VARIABLES if environment.get(name)},
        memlock=_memlock(),
        cpus=_cpus(),
    )


def _ask(questions: Mapping[str, tuple[str, ...]], programs: Mapping[str, str], run: Runner) -> dict[str, str]:
    """All are asked at once: each may take a while to wake its driver."""
    asked = {
        name: (programs.get(command[0], command[0]), *command[1:])
        for name, command in questions.items()
        if command[0] in programs or command[0] not in PROGRAMS
    }
    if not asked:
        return {}
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = dict(zip(asked, pool.map(run, asked.values()), strict=True))
    return {name: answer for name, answer in answers.items() if answer}


def _glob(root: Path, pattern: str) -> list[tuple[str, Path]]:
    """Gives the paths below root that match, each with its name as seen from there."""
    relative = pattern.lstrip("/")
    if not any(mark in relative for mark in "*["):
        path = root / relative
        return [(pattern, path)] if path.exists() else []
    return [("/" + path.relative_to(root).as_posix(), path) for path in sorted(root.glob(relative))]


def _read(path: Path, most: int = MAX_FILE_BYTES) -> str | None:
    try:
        with path.open("rb") as file:
            return file.read(most).decode("utf-8", "replace")
    except OSError:
        return None


def _find(root: Path, name: str, folders: Sequence[str], find: Finder) -> str | None:
    found = find(name)
    if found:
        return found
    for folder in folders:
        path = root / folder.lstrip("/") / name
        if os.access(path, os.X_OK):
            return str(path)
    return None


def _memlock() -> int | None:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def _cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
