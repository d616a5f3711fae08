"""Says which backends can be built and run here, which is best, and what to install for the others. It is pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pyrun.machine.describe import Machine
from pyrun.machine.names import BACKENDS
from pyrun.machine.rocm import find_rocm
from pyrun.machine.snapshot import Snapshot
from pyrun.machine.vulkan import OLDEST_HEADERS, are_headers_old, can_fetch_headers, headers_version


@dataclass(frozen=True)
class Missing:
    what: str
    packages: dict[str, str]  # what to install on each distribution; empty where no package helps
    hint: str = ""  # what to do where no package helps
    origin: dict[str, str] = field(default_factory=dict)  # where a distribution's package comes from, if not from it

    def remark(self, distribution: str) -> str:
        return self.hint or self.origin.get(distribution, "")


@dataclass(frozen=True)
class Backend:
    name: str
    has_device: bool
    to_run: list[Missing]
    to_build: list[Missing]
    note: str = ""

    @property
    def missing(self) -> list[Missing]:
        return [*self.to_run, *self.to_build]

    @property
    def is_ready(self) -> bool:
        return self.has_device and not self.missing


def _packages(debian: str, fedora: str, arch: str) -> dict[str, str]:
    return {"debian": debian, "fedora": fedora, "arch": arch}


COMPILER = Missing("a C++17 compiler", _packages("g++", "gcc-c++", "gcc"))
VULKAN_HEADERS = Missing(
    "the Vulkan headers and loader",
    _packages("libvulkan-dev", "vulkan-headers vulkan-loader-devel", "vulkan-headers vulkan-icd-loader"),
)
GLSLC = Missing("the shader compiler glslc", _packages("glslc", "glslc", "shaderc"))
SPIRV = Missing("the SPIR-V headers", _packages("spirv-headers", "spirv-headers-devel", "spirv-headers"))
VULKANINFO = Missing("vulkaninfo", _packages("vulkan-tools", "vulkan-tools", "vulkan-tools"))
HIPCC = Missing(
    "the HIP compiler",
    _packages("hipcc", "rocm-hip-devel", "rocm-hip-sdk"),
    origin={"debian": "llama.cpp needs ROCm 6.1 or newer; where your release has an older one, take AMD's packages"},
)
HIPBLAS = Missing(
    "hipBLAS and rocBLAS",
    _packages("libhipblas-dev librocblas-dev", "hipblas-devel rocblas-devel", "rocm-hip-sdk"),
)
NVCC = Missing(
    "the CUDA compiler",
    _packages("nvidia-cuda-toolkit", "cuda-toolkit", "cuda"),
    origin={"fedora": "it is in NVIDIA's repository for Fedora"},
)
NVIDIA_DRIVER = Missing(
    "NVIDIA's driver",
    _packages("nvidia-driver", "akmod-nvidia xorg-x11-drv-nvidia-cuda", "nvidia-utils nvidia-open"),
    origin={"debian": "on Ubuntu: sudo ubuntu-drivers install", "fedora": "it is in RPM Fusion"},
)
GROUPS = "add your user to the groups render and video (sudo usermod -aG render,video $USER), then log in again"

_DRIVERS = {
    "amd": _packages("mesa-vulkan-drivers", "mesa-vulkan-drivers", "vulkan-radeon"),
    "nvidia": NVIDIA_DRIVER.packages,
    "other": _packages("mesa-vulkan-drivers", "mesa-vulkan-drivers", "vulkan-intel"),
}


def check_backends(snapshot: Snapshot, machine: Machine) -> list[Backend]:
    checks: dict[str, Callable[[Snapshot, Machine], Backend]] = {
        "cpu": _cpu,
        "vulkan": _vulkan,
        "rocm": _rocm,
        "cuda": _cuda,
    }
    return [checks[name](snapshot, machine) for name in BACKENDS]


def recommended(machine: Machine) -> tuple[str, str]:
    """Names the backend for this machine, whether or not everything for it is installed, and says why."""
    gpu = machine.gpu
    if machine.system == "Darwin":
        return "cpu", "a build on macOS has Metal in it"
    if gpu is None:
        return "cpu", machine.notes[0] if machine.notes else "no graphics were found"
    if gpu.vendor == "nvidia" and gpu.compute:
        return "cuda", f"{gpu.name} with NVIDIA's driver"
    if gpu.vendor == "amd":
        return "vulkan", f"the stable one on {gpu.gfx or gpu.name}; ROCm is optional"
    return "vulkan", f"{gpu.name}"


def runtime_environment(machine: Machine, backend: str) -> dict[str, str]:
    """A server of this backend has to be started with these variables."""
    if backend == "vulkan" and not machine.vulkan and machine.software_vulkan is not None:
        # Without it llama.cpp passes over a device that is the processor itself.
        return {"GGML_VK_VISIBLE_DEVICES": str(machine.software_vulkan)}
    # The best card decides: the variable means all of them.
    card = next((gpu for gpu in machine.gpus if gpu.vendor == "amd" and gpu.has_rocm), None)
    if backend != "rocm" or card is None or card.override is None or card.override.value is None:
        return {}
    return {"HSA_OVERRIDE_GFX_VERSION": card.override.value}


def install_hint(missing: list[Missing], distribution: str) -> str:
    """Writes one line for the user's distribution, or one for each where it is not known."""
    names = {"debian": "Debian/Ubuntu", "fedora": "Fedora", "arch": "Arch/SteamOS"}
    commands = {"debian": "sudo apt install", "fedora": "sudo dnf install", "arch": "sudo pacman -S"}
    lines = {
        family: " ".join(dict.fromkeys(" ".join(m.packages[family] for m in missing if m.packages).split()))
        for family in names
    }
    if not any(lines.values()):
        return ""
    if distribution in lines:
        return f"{commands[distribution]} {lines[distribution]}"
    return " · ".join(f"{names[family]}: {line}" for family, line in lines.items())


def build_needs(snapshot: Snapshot, backend: str) -> list[Missing]:
    """Finds what a build of the backend lacks, whatever devices there are."""
    there = any(name in snapshot.programs for name in ("c++", "g++", "clang++"))
    missing = [] if there else [COMPILER]
    if backend == "vulkan":
        if not (snapshot.matching("*/include/vulkan/vulkan.h") and snapshot.matching("*/libvulkan.so")):
            missing.append(VULKAN_HEADERS)
        elif are_headers_old(snapshot) and not can_fetch_headers(snapshot):
            missing.append(_newer_headers(snapshot))
        if "glslc" not in snapshot.programs:
            missing.append(GLSLC)
        if not snapshot.matching("*/SPIRV-HeadersConfig.cmake"):
            missing.append(SPIRV)
    elif backend == "rocm":
        rocm = find_rocm(snapshot)
        if not (rocm.has_hipcc if rocm else "hipcc" in snapshot.programs):
            missing.append(HIPCC)
        if rocm is None:
            missing.append(HIPBLAS)
        elif rocm.is_old:
            hint = "AMD's own packages are newer than the distribution's"
            missing.append(Missing(f"ROCm 6.1 or newer (here is {rocm.version})", {}, hint))
    elif backend == "cuda" and "nvcc" not in snapshot.programs:
        missing.append(NVCC)
    return missing


def _newer_headers(snapshot: Snapshot) -> Missing:
    wanted, found = (".".join(map(str, v or ())) for v in (OLDEST_HEADERS, headers_version(snapshot)))
    hint = "the Vulkan SDK has them: unpack it and set VULKAN_SDK to its folder, or use a newer distribution"
    return Missing(f"Vulkan headers {wanted} or newer (here are {found})", {}, hint)


def _cpu(snapshot: Snapshot, machine: Machine) -> Backend:
    note = "with Metal" if machine.system == "Darwin" else f"{machine.cpu.level}, {machine.cpu.threads} threads"
    return Backend("cpu", True, [], build_needs(snapshot, "cpu"), note)


def _vulkan(snapshot: Snapshot, machine: Machine) -> Backend:
    if machine.system == "Darwin":
        return Backend("vulkan", False, [], [], "Metal is used on macOS")
    has_device = bool(machine.vulkan) or bool(machine.gpus)
    to_run = _why_no_device(snapshot, machine) if has_device and not machine.vulkan else []
    notes = [device.name for device in machine.vulkan]
    if not has_device and machine.software_vulkan is not None:
        notes.append("the only device is the processor itself, and slow")
    if are_headers_old(snapshot) and can_fetch_headers(snapshot):
        notes.append("a build fetches newer headers")
    return Backend("vulkan", has_device, to_run, build_needs(snapshot, "vulkan"), ", ".join(notes))


def _why_no_device(snapshot: Snapshot, machine: Machine) -> list[Missing]:
    nodes = snapshot.matching("/dev/dri/renderD*")
    if nodes and not snapshot.usable.intersection(nodes):
        return [Missing("the right to open /dev/dri", {}, GROUPS)]
    if not snapshot.matching("*/vulkan/icd.d/*.json"):
        return [Missing("a Vulkan driver", _DRIVERS.get(machine.gpus[0].vendor, _DRIVERS["other"]))]
    return [] if "vulkaninfo" in snapshot.programs else [VULKANINFO]


def _rocm(snapshot: Snapshot, machine: Machine) -> Backend:
    cards = [gpu for gpu in machine.gpus if gpu.vendor == "amd" and gpu.has_rocm]
    if not cards:
        others = [gpu for gpu in machine.gpus if gpu.vendor == "amd"]
        why = f"{others[0].gfx} is not supported: use vulkan" if others else "no AMD graphics"
        return Backend("rocm", False, [], [], why)
    to_run = []
    if "/dev/kfd" not in snapshot.paths:
        to_run.append(Missing("/dev/kfd", {}, "the kernel's amdgpu driver makes it; a newer kernel may know the chip"))
    elif "/dev/kfd" not in snapshot.usable:
        to_run.append(Missing("the right to open /dev/kfd", {}, GROUPS))
    card = cards[0]
    note = f"{card.gfx} ({card.gfx_source})"
    if rocm := find_rocm(snapshot):
        note += f", ROCm {rocm.version + ' ' if rocm.version else ''}in {rocm.root}"
    if card.override and card.override.value:
        note += f", HSA_OVERRIDE_GFX_VERSION={card.override.value}: {card.override.source}"
    return Backend("rocm", True, to_run, build_needs(snapshot, "rocm"), note)


def _cuda(snapshot: Snapshot, machine: Machine) -> Backend:
    cards = [gpu for gpu in machine.gpus if gpu.vendor == "nvidia"]
    if not cards and not _has_nvidia_hardware(snapshot):
        return Backend("cuda", False, [], [], "no NVIDIA graphics")
    to_run = [] if any(gpu.compute for gpu in cards) else [NVIDIA_DRIVER]
    note = ", ".join(f"{gpu.name}, compute capability {gpu.compute}" for gpu in cards if gpu.compute)
    return Backend("cuda", True, to_run, build_needs(snapshot, "cuda"), note)


def _has_nvidia_hardware(snapshot: Snapshot) -> bool:
    return any(snapshot.number(path) == 0x10DE for path in snapshot.matching("/sys/class/drm/card*/device/vendor"))
