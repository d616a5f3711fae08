"""Says what each backend adds to a build: cmake definitions and variables. It is pure: a machine in, settings out."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pyrun.errors import UserError
from pyrun.machine.amd import gfx_of_override
from pyrun.machine.backends import NVIDIA_DRIVER, Missing, build_needs, check_backends, install_hint
from pyrun.machine.cpu import is_arm
from pyrun.machine.describe import Machine
from pyrun.machine.isa import PORTABLE, X86_LEVELS, build_flags, cuda_architectures, level_of
from pyrun.machine.rocm import SYSTEM, find_rocm
from pyrun.machine.snapshot import Snapshot

UNKNOWN_GFX = Missing("the gfx of the card", {}, "set LLAMA_GFX_ARCH_OVERRIDE to it, such as gfx1100")
ROCM_SDK_HINT = "or, without a system install: `llama-run build --backend rocm --rocm-sdk ARCHIVE`, see docs/machine.md"


@dataclass(frozen=True)
class Addition:
    definitions: dict[str, str]
    environment: dict[str, str] = field(default_factory=dict)


def addition(
    snapshot: Snapshot, machine: Machine, backend: str, target: str | None = None, vulkan_headers: Path | None = None
) -> Addition:
    """`target` is the processor that the build is for, where that is not this machine's."""
    flags = machine.cpu.build_flags if target is None else _target_flags(target, snapshot.arch)
    definitions = dict(flag.removeprefix("-D").split("=", 1) for flag in flags)
    environment: dict[str, str] = {}
    if target is not None:
        # Upstream links to InfiniBand's library wherever it finds one, and the machine that this is for may have none.
        definitions["GGML_RPC_RDMA"] = "OFF"
    if backend == "vulkan":
        definitions["GGML_VULKAN"] = "ON"
        if vulkan_headers is not None:
            definitions["Vulkan_INCLUDE_DIR"] = str(vulkan_headers)
    elif backend == "rocm":
        rocm, environment = _rocm(snapshot, machine)
        definitions |= rocm
    elif backend == "cuda":
        definitions |= _cuda(snapshot)
    return Addition(definitions, environment)


def check_buildable(snapshot: Snapshot, machine: Machine, backend: str, target: str | None = None) -> None:
    """Says what to install before anything is fetched or compiled."""
    missing = build_needs(snapshot, backend)
    here = next(b for b in check_backends(snapshot, machine) if b.name == backend)
    # Vulkan's shaders are the same for every card; the others are compiled for the one that is there.
    if not here.has_device and (machine.system == "Darwin" or (backend != "vulkan" and target is None)):
        raise UserError(
            f"{backend} cannot be built here: {here.note}",
            "`llama-run doctor` shows what was found; --target builds for another machine, for all usual cards",
        )
    if target is None:
        if backend == "cuda" and not cuda_architectures(snapshot):
            missing.insert(0, NVIDIA_DRIVER)
        if backend == "rocm" and not rocm_targets(snapshot, machine):
            missing.insert(0, UNKNOWN_GFX)
    if missing:
        raise UserError(
            f"{backend} cannot be built here; missing: {', '.join(m.what for m in missing)}",
            _remedy(missing, machine.distribution, backend),
        )


def is_buildable(snapshot: Snapshot, machine: Machine, backend: str) -> bool:
    try:
        check_buildable(snapshot, machine, backend)
    except UserError:
        return False
    return True


def rocm_targets(snapshot: Snapshot, machine: Machine) -> list[str]:
    """The kernels are compiled for each chip, or the one that it is told to be; without one, for what was named."""
    cards = [gpu for gpu in machine.gpus if gpu.vendor == "amd" and gpu.has_rocm]
    cards = [gpu for gpu in cards if not gpu.is_small] or cards
    told = [gfx_of_override(gpu.override.value) if gpu.override and gpu.override.value else gpu.gfx for gpu in cards]
    named = snapshot.environment.get("LLAMA_GFX_ARCH_OVERRIDE", "").lower().split(",") if not cards else []
    return sorted({gfx.strip() for gfx in [*told, *named] if gfx and gfx.strip()})


def _rocm(snapshot: Snapshot, machine: Machine) -> tuple[dict[str, str], dict[str, str]]:
    definitions = {"GGML_HIP": "ON"}
    if targets := rocm_targets(snapshot, machine):
        definitions["AMDGPU_TARGETS"] = ";".join(targets)
    rocm = find_rocm(snapshot)
    if rocm is None or rocm.root == SYSTEM:
        return definitions, {}
    definitions["CMAKE_PREFIX_PATH"] = rocm.root
    # The compiler looks for the device libraries below this, not below where it was built for.
    definitions["CMAKE_HIP_FLAGS"] = f"--rocm-path={rocm.root}"
    if rocm.compiler:
        definitions["CMAKE_HIP_COMPILER"] = rocm.compiler
    environment = {"ROCM_PATH": rocm.root, "HIP_PATH": rocm.root, "HIP_PLATFORM": "amd"}
    if rocm.device_libraries:
        environment["HIP_DEVICE_LIB_PATH"] = rocm.device_libraries
    return definitions, environment


def _cuda(snapshot: Snapshot) -> dict[str, str]:
    nvcc = snapshot.programs["nvcc"]
    definitions = {"GGML_CUDA": "ON", "CMAKE_CUDA_COMPILER": nvcc}
    root = Path(nvcc).parents[1]
    if root != Path(SYSTEM):
        definitions["CUDAToolkit_ROOT"] = str(root)
    if numbers := cuda_architectures(snapshot):
        definitions["CMAKE_CUDA_ARCHITECTURES"] = ";".join(numbers)
    return definitions


def _target_flags(target: str, arch: str) -> list[str]:
    if target.strip().lower() not in ("native", PORTABLE) and (level_of(target) in X86_LEVELS) == is_arm(arch):
        raise UserError(
            f"--target {target} is for another kind of processor than this one ({arch})",
            "build it on a machine of that kind: nothing is cross-compiled",
        )
    return build_flags(target)


def _remedy(missing: list[Missing], distribution: str, backend: str) -> str:
    parts = [install_hint(missing, distribution), *(m.remark(distribution) for m in missing)]
    if backend == "rocm":
        parts.append(ROCM_SDK_HINT)
    return "; ".join(part for part in parts if part)
