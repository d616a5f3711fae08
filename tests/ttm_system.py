"""A tree like a real system, and scripts/apply-ttm-kernel-params on it."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

from helpers import ROOT

SCRIPT = ROOT / "scripts" / "apply-ttm-kernel-params"


def load() -> ModuleType:
    loader = SourceFileLoader("apply_ttm_kernel_params", str(SCRIPT))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    loader.exec_module(module)
    sys.dont_write_bytecode = written
    return module


ttm = load()
editing = sys.modules["kernel_command_line"]

# 24 GiB, on a kernel that has no use for gttsize and on one that needs it.
TTM = "ttm.pages_limit=6291456 ttm.page_pool_size=6291456"
OLD = f"{TTM} amdgpu.gttsize=24576"
GRUB = "etc/default/grub"
ENTRIES = "boot/loader/entries"

UBUNTU = """# If you change this file, run 'update-grub' afterwards to update
# /boot/grub/grub.cfg.

GRUB_DEFAULT=0
GRUB_TIMEOUT_STYLE=hidden
GRUB_DISTRIBUTOR=`( . /etc/os-release; echo ${{NAME:-Ubuntu}} ) 2>/dev/null || echo Ubuntu`
GRUB_CMDLINE_LINUX_DEFAULT="quiet splash{0}"
GRUB_CMDLINE_LINUX=""
"""


@dataclass(frozen=True)
class System:
    """A tree with 31.2 GiB RAM and kernel 6.18, unless told otherwise."""

    root: Path

    def put(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode("utf-8", "surrogateescape"))

    def files(self) -> dict[str, str]:
        found = (path for path in self.root.rglob("*") if path.is_file())
        names = {
            str(path.relative_to(self.root)): path.read_bytes().decode("utf-8", "surrogateescape") for path in found
        }
        return {name: text for name, text in names.items() if name.split("/")[0] in ("etc", "boot", "efi")}

    def run(self, *arguments: str) -> tuple[int, str]:
        """Exit code, and what was said on both channels."""
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            code: int = ttm.main(["--root", str(self.root), *arguments])
        return code, output.getvalue()

    def applied(self, *arguments: str) -> str:
        code, output = self.run("--yes", *arguments)
        assert code == 0, output
        return output


@dataclass
class Live:
    """Takes the tree for the running system, and records its commands."""

    fail: bool = False
    commands: list[Sequence[str]] = field(default_factory=list)

    def run(self, command: Sequence[str]) -> None:
        self.commands.append(command)
        if self.fail:
            raise ttm.Failure("`update-grub` ended with exit code 1")
