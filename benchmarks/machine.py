"""Tells what was measured on what: machine, build, model and noise, as they go into every result."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import psutil

from benchmarks.records import Noise
from pyrun.home import Home, version
from pyrun.machine.describe import describe
from pyrun.machine.names import BACKENDS
from pyrun.machine.probe import probe
from pyrun.models.facts import ModelFacts
from pyrun.models.find import Model
from pyrun.upstream.pin import read_pin

WHOLE_HASH_BYTES = 2 << 30
SAMPLE = 1 << 20
SAMPLES = 256
# A load average above this part of the cores, before anything is measured, is somebody else's work.
BUSY_LOAD = 0.25


def describe_machine() -> dict[str, Any]:
    machine = describe(probe())
    return {
        "name": machine.name,
        "system": f"{platform.system()} {platform.release()}",
        "distribution": machine.distribution_name,
        "cpu": machine.cpu.name,
        "cpu_level": machine.cpu.level,
        "cores": machine.cpu.cores,
        "ram_bytes": machine.ram,
        "gpus": [{"name": gpu.name, "memory_bytes": gpu.memory, "driver": gpu.driver} for gpu in machine.gpus],
        "python": platform.python_version(),
    }


def describe_build(home: Home, server: Path) -> dict[str, Any]:
    """Tells of our server which program it is, and which checkout it was started from."""
    pin = read_pin(home.pin)
    return {
        **describe_program(server),
        "pin": pin.commit,
        "llama_run": version(),
        "commit": _first_line(["git", "-C", str(home.root), "rev-parse", "HEAD"]),
        "edited": bool(_first_line(["git", "-C", str(home.root), "status", "--porcelain", "-uno"])),
    }


def describe_program(server: Path) -> dict[str, Any]:
    """Tells what a server says of itself, and what it is in truth."""
    lines = _lines([str(server), "--version"])
    says = next((line for line in lines if line.startswith("version")), "")
    return {"server": str(server), "says": says, "version": "\n".join(lines), **sha256_of(server)}


def backend_of(server: Path) -> str:
    """The devices that a server finds tell: without one it works on the processor, whatever it was built for."""
    devices = [line.strip().lower() for line in _lines([str(server.absolute()), "--list-devices"])]
    found = (name for device in devices for name in BACKENDS if name != "cpu" and device.startswith(name))
    return next(found, "cpu")


def describe_model(model: Model, facts: ModelFacts) -> dict[str, Any]:
    return {
        "name": model.name,
        "file": model.path.name,
        "bytes": model.size,
        **sha256_of(model.path),
        "architecture": facts.architecture,
        "quantisation": facts.quantisation,
        "kind": facts.kind,
        "context": facts.context,
        "kv_bytes_per_token": facts.kv_per_token("f16", "f16"),
        "fixed_bytes": facts.checkpoint_bytes("f16", "f16"),
    }


def sha256_of(path: Path) -> dict[str, Any]:
    """The whole file is hashed; of a very large one samples are, and the result says so."""
    size = path.stat().st_size
    digest = hashlib.sha256()
    with path.open("rb") as file:
        if size <= WHOLE_HASH_BYTES:
            while block := file.read(SAMPLE):
                digest.update(block)
            return {"sha256": digest.hexdigest()}
        for n in range(SAMPLES):
            file.seek((size - SAMPLE) * n // (SAMPLES - 1))
            digest.update(file.read(SAMPLE))
    digest.update(str(size).encode())
    return {"sha256_of_samples": digest.hexdigest(), "samples": f"{SAMPLES} x {SAMPLE} bytes and the size"}


def noise() -> Noise:
    load = os.getloadavg()
    return {
        "load_average": [round(value, 2) for value in load],
        "cores": psutil.cpu_count() or 1,
        "memory_available": psutil.virtual_memory().available,
    }


def is_busy(noise_before: Noise) -> bool:
    return noise_before["load_average"][0] > BUSY_LOAD * noise_before["cores"]


def _first_line(command: list[str]) -> str:
    return next(iter(_lines(command)), "")


def _lines(command: list[str]) -> list[str]:
    """Gives what a program says, and nothing if it fails."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return []
    said = [line for line in (result.stdout + result.stderr).splitlines() if line.strip()]
    return said if result.returncode == 0 else []
