"""A machine as files below a folder and answers of programs, and the snapshot that the probe takes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyrun.machine.probe import probe
from pyrun.machine.snapshot import Snapshot


@dataclass(frozen=True)
class Recorded:
    name: str
    files: Mapping[str, str]  # path -> text
    answers: Mapping[str, str] = field(default_factory=dict)  # program -> what it prints
    programs: Sequence[str] = ("c++",)  # that are there apart from those that answer
    system: str = "Linux"
    arch: str = "x86_64"
    memlock: int | None = 8 << 20
    cpus: int = 4096  # that the process may run on: all
    rocm_sdk: str | None = None  # where one was unpacked


def snapshot_of(
    machine: Recorded, root: Path, environment: Mapping[str, str] | None = None, *, gpus: bool = True
) -> Snapshot:
    """Goes through the real probe, with the tree written below root."""
    for name, text in machine.files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    there = {*machine.programs, *machine.answers}

    def run(command: Sequence[str]) -> str | None:
        return machine.answers.get(Path(command[0]).name)

    def find(program: str) -> str | None:
        return f"/usr/bin/{program}" if program in there else None

    taken = probe(
        root,
        run,
        find,
        environment or {},
        gpus=gpus,
        rocm_sdk=machine.rocm_sdk,
        system=machine.system,
        arch=machine.arch,
    )
    return replace(taken, memlock=machine.memlock, cpus=machine.cpus)
