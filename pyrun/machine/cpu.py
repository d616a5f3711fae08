"""Describes the processor: its name, instruction set, and how many threads are worth starting."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from pyrun.errors import UserError
from pyrun.machine.isa import APPLE, NATIVE, X86_LEVELS, arm_level, build_flags, level_of, x86_level
from pyrun.machine.snapshot import Snapshot

ISA_OVERRIDE = "LLAMA_CPU_ISA_OVERRIDE"


@dataclass(frozen=True)
class Cpu:
    name: str
    level: str
    level_source: str
    build_flags: list[str]  # a build for this machine has them
    cores: int  # physical ones count, and fast ones where there are two kinds
    threads: int  # the server gets as many as this process may use cores
    threads_source: str


def describe_cpu(snapshot: Snapshot) -> Cpu:
    told = sysctl(snapshot)
    blocks = [_block(text) for text in snapshot.text("/proc/cpuinfo").split("\n\n") if text.strip()]
    name, level, source = _identity(snapshot, told, blocks)
    flags = list(NATIVE)
    named = snapshot.environment.get(ISA_OVERRIDE)
    if named:
        flags = build_flags(named)
        if named.strip().lower() != "native":
            level = level_of(named)
            _check_family(named, level, snapshot.arch)
            source = ISA_OVERRIDE
    cores, cores_source = _cores(told, blocks, snapshot.cpus)
    threads, threads_source = cores, cores_source
    for limit, what in ((snapshot.cpus, "CPUs this process may run on"), (_quota(snapshot), "CPU quota")):
        if limit is not None and limit < threads:
            threads, threads_source = limit, what
    return Cpu(name, level, source, flags, cores, threads, threads_source)


def sysctl(snapshot: Snapshot) -> dict[str, str]:
    return dict(re.findall(r"^([\w.]+):\s*(.*?)\s*$", snapshot.outputs.get("sysctl", ""), re.MULTILINE))


def is_arm(arch: str) -> bool:
    return arch.lower() in ("aarch64", "arm64")


def _identity(
    snapshot: Snapshot, told: dict[str, str], blocks: list[dict[str, str]]
) -> tuple[str, str, str]:  # name, level, source
    if snapshot.system == "Darwin" and is_arm(snapshot.arch):
        return told.get("machdep.cpu.brand_string", "Apple M"), APPLE, "sysctl" if told else "uname"
    first = blocks[0] if blocks else {}
    name = next((block["model name"] for block in blocks if "model name" in block), "")
    if is_arm(snapshot.arch):
        # Cores of two kinds may differ; what all have is what a build can use.
        sets = [set(block["Features"].split()) for block in blocks if "Features" in block]
        level = arm_level(set.intersection(*sets)) if sets else "armv8"
        return name or _arm_name(first), level, "/proc/cpuinfo" if sets else "uname"
    flags = first.get("flags", "").split()
    return name or snapshot.arch, x86_level(flags), "/proc/cpuinfo" if flags else "uname"


def _arm_name(block: dict[str, str]) -> str:
    parts = {"0xd0b": "Cortex-A76", "0xd0c": "Neoverse N1", "0xd40": "Neoverse V1", "0xd4f": "Neoverse V2"}
    part = block.get("CPU part", "")
    return parts.get(part, f"ARM part {part}" if part else "ARM")


def _check_family(named: str, level: str, arch: str) -> None:
    if (level in X86_LEVELS) == is_arm(arch):
        raise UserError(
            f"{ISA_OVERRIDE}={named} is for another kind of processor than this one ({arch})",
            "it is meant for this machine; to build for another one, say so to `llama-run build`",
        )


def _block(text: str) -> dict[str, str]:
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, value in pairs}


def _cores(told: dict[str, str], blocks: list[dict[str, str]], cpus: int) -> tuple[int, str]:
    for key in ("hw.perflevel0.physicalcpu", "hw.physicalcpu"):
        if told.get(key, "").isdigit():
            return int(told[key]), "performance cores" if "perflevel" in key else "cores"
    ids = {(block.get("physical id"), block["core id"]) for block in blocks if "core id" in block}
    if ids:
        return len(ids), "cores; a second thread on one adds little"
    listed = sum("processor" in block for block in blocks)
    return (listed, "cores") if listed else (cpus, "CPUs this process may run on")


def _quota(snapshot: Snapshot) -> int | None:
    """A container may have one; threads beyond it would only wait for each other."""
    words = snapshot.text("/sys/fs/cgroup/cpu.max").split()
    if len(words) == 2 and words[0].isdigit() and words[1].isdigit():
        return max(1, math.ceil(int(words[0]) / int(words[1])))
    return None
