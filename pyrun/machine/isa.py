"""Knows instruction sets: which level a processor has, and the cmake flags of a build for a level.

On the machine itself the compiler finds out better (GGML_NATIVE); explicit flags serve builds for another machine.
A level's flags hold for every processor that is said to have it.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from pyrun.errors import UserError
from pyrun.machine.nvidia import parse_nvidia_smi
from pyrun.machine.snapshot import Snapshot

NATIVE = ["-DGGML_NATIVE=ON"]
# One build for every machine of a kind: the server loads the code for its processor when it starts, and graphics from
# modules beside it. It needs no libraries that some distributions lack: OpenSSL is only for serving HTTPS.
PORTABLE = "portable"
PORTABLE_FLAGS = [
    "-DGGML_NATIVE=OFF",
    "-DGGML_BACKEND_DL=ON",
    "-DGGML_CPU_ALL_VARIANTS=ON",
    "-DLLAMA_OPENSSL=OFF",
]

# llama.cpp can be told these for x86; /proc/cpuinfo calls them so.
X86_OPTIONS: dict[str, tuple[str, ...]] = {
    "SSE42": ("sse4_2",),
    "AVX": ("avx",),
    "F16C": ("f16c",),
    "FMA": ("fma",),
    "BMI2": ("bmi2",),
    "AVX2": ("avx2",),
    "AVX_VNNI": ("avx_vnni",),
    "AVX512": ("avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw"),
    "AVX512_VBMI": ("avx512vbmi",),
    "AVX512_VNNI": ("avx512_vnni",),
    "AVX512_BF16": ("avx512_bf16",),
    "AMX_TILE": ("amx_tile",),
    "AMX_INT8": ("amx_int8",),
    "AMX_BF16": ("amx_bf16",),
}

_AVX2 = ("SSE42", "AVX", "F16C", "FMA", "BMI2", "AVX2")
_AVX512 = (*_AVX2, "AVX512")
_BF16 = (*_AVX512, "AVX512_VBMI", "AVX512_VNNI", "AVX512_BF16")

# The best comes first: a processor has the first level of which it has everything.
X86_LEVELS: dict[str, tuple[str, ...]] = {
    "amx": (*_BF16, "AMX_TILE", "AMX_INT8", "AMX_BF16"),
    "avx512_bf16": _BF16,
    "avx512_vnni": (*_AVX512, "AVX512_VNNI"),
    "avx512": _AVX512,
    "avx2": _AVX2,
    "avx": ("SSE42", "AVX"),
    "sse42": ("SSE42",),
    "x86_64": (),
}


@dataclass(frozen=True)
class ArmLevel:
    features: tuple[str, ...]  # what /proc/cpuinfo calls them
    march: str  # what a compiler calls it


ARM_LEVELS = {
    "sve": ArmLevel(("asimddp", "i8mm", "sve", "bf16"), "armv8.6-a+sve"),
    "armv8.6+i8mm": ArmLevel(("asimddp", "i8mm", "bf16"), "armv8.6-a"),
    "armv8.2+dotprod": ArmLevel(("asimddp",), "armv8.2-a+dotprod"),
    "armv8": ArmLevel((), "armv8-a"),
}
# Every M chip has this; the newer ones have more, which a native build uses.
APPLE = "apple_silicon"
APPLE_MARCH = "armv8.4-a+dotprod"

LEVELS = (*X86_LEVELS, *ARM_LEVELS, APPLE)

# A processor's name stands for a level, and for x86 options that it has on top.
TARGETS: dict[str, tuple[str, tuple[str, ...]]] = {
    "zen": ("avx2", ()),
    "zen2": ("avx2", ()),
    "zen3": ("avx2", ()),
    "zen4": ("avx512_bf16", ()),
    "zen5": ("avx512_bf16", ("AVX_VNNI",)),
    "steamdeck": ("avx2", ()),
    "5800h": ("avx2", ()),
    "7840u": ("avx512_bf16", ()),
    "nehalem": ("sse42", ()),
    "sandybridge": ("avx", ()),
    "haswell": ("avx2", ()),
    "skylake": ("avx2", ()),
    "skylake-avx512": ("avx512", ()),
    "cascadelake": ("avx512_vnni", ()),
    "icelake": ("avx512_vnni", ("AVX512_VBMI",)),
    "alderlake": ("avx2", ("AVX_VNNI",)),
    "sapphirerapids": ("amx", ("AVX_VNNI",)),
    "raspberrypi4": ("armv8", ()),
    "raspberrypi5": ("armv8.2+dotprod", ()),
    "neoverse-n1": ("armv8.2+dotprod", ()),
    "graviton2": ("armv8.2+dotprod", ()),
    "graviton3": ("sve", ()),
    "graviton4": ("sve", ()),
    "grace": ("sve", ()),
    **{f"m{n}": (APPLE, ()) for n in range(1, 6)},
}


def x86_level(flags: Collection[str]) -> str:
    """The flags line of /proc/cpuinfo tells it."""
    have = {name for name, needed in X86_OPTIONS.items() if all(flag in flags for flag in needed)}
    return next(level for level, options in X86_LEVELS.items() if have.issuperset(options))


def arm_level(features: Collection[str]) -> str:
    """The Features line of /proc/cpuinfo tells it."""
    return next(name for name, level in ARM_LEVELS.items() if all(f in features for f in level.features))


def level_of(level_or_target: str) -> str:
    """Finds the level that a name means; an unknown name is refused with those that are known."""
    name = level_or_target.strip().lower()
    if name in LEVELS:
        return name
    if name in TARGETS:
        return TARGETS[name][0]
    raise UserError(
        f"{level_or_target!r} is neither an instruction set nor a processor that is known here",
        f"levels: {', '.join(LEVELS)}; processors: {', '.join(TARGETS)}; native: what this machine has; "
        "portable: chosen when it starts",
    )


def build_flags(level_or_target: str) -> list[str]:
    """Gives the cmake flags for a level (avx2) or a processor (zen3); `native` leaves it to the compiler, `portable` to
    the server."""
    name = level_or_target.strip().lower()
    if name == "native":
        return list(NATIVE)
    if name == PORTABLE:
        return list(PORTABLE_FLAGS)
    level = level_of(name)
    flags = ["-DGGML_NATIVE=OFF"]
    if level in X86_LEVELS:
        on = {*X86_LEVELS[level], *(TARGETS[name][1] if name in TARGETS else ())}
        # All of them are given, so that nothing is left to what an earlier configuration or a default says.
        return flags + [f"-DGGML_{option}={'ON' if option in on else 'OFF'}" for option in X86_OPTIONS]
    march = APPLE_MARCH if level == APPLE else ARM_LEVELS[level].march
    return [*flags, f"-DGGML_CPU_ARM_ARCH={march}"]


def cuda_architectures(snapshot: Snapshot) -> list[str]:
    """CMAKE_CUDA_ARCHITECTURES is this for the NVIDIA cards here: 9.0 gives 90. It is empty where there is none."""
    found = {card.compute for card in parse_nvidia_smi(snapshot.outputs.get("nvidia-smi", ""))}
    numbers = {match[1] + match[2] for compute in found if (match := re.fullmatch(r"(\d+)\.(\d+)", compute))}
    return sorted(numbers, key=int)
