"""A clone that models are downloaded to, and what the fake hub offers it."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest

from pyrun.cli.main import main
from pyrun.home import Home


def data(name: str, size: int = 300_000) -> bytes:
    return random.Random(name).randbytes(size)


Q4, Q8 = data("Q4", 200_000), data("Q8", 300_000)
NAME = "maker/toy-GGUF"


class Machine:
    """A clone with an empty models/, and what the last command did there."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.home = Home(root)
        self.folder = self.home.models / "maker" / "toy-GGUF"
        self.pauses: list[float] = []
        self._capsys = capsys
        self.code, self.out, self.err = 0, "", ""

    def run(self, *arguments: str) -> int:
        try:
            main(["--download", *arguments])
            self.code = 0
        except SystemExit as stop:
            self.code = int(stop.code or 0)
        captured = self._capsys.readouterr()
        self.out, self.err = captured.out, captured.err
        return self.code

    def files(self) -> dict[str, bytes]:
        """Everything in models/, apart from locks."""
        paths = [path for path in self.home.models.rglob("*") if path.is_file() and path.name != ".download.lock"]
        return {str(path.relative_to(self.home.models)): path.read_bytes() for path in paths}

    def parts(self) -> list[Path]:
        return sorted(self.home.models.rglob("*.part"))

    def leave_part(self, name: str, whole: bytes, n_bytes: int) -> None:
        """As if an earlier download had been interrupted."""
        part = self.folder / f"{name}.{hashlib.sha256(whole).hexdigest()[:12]}.part"
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(whole[:n_bytes])
