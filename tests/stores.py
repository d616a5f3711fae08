"""Real stores, which the bindings write, and `llama-run cache` as a user gives it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from backend import BINARY
from helpers import ROOT

from pyrun import _kernels
from pyrun.cli.main import main

MODEL = bytes([0xF1]) + bytes(15)
OTHER = bytes([0xF2]) + bytes(15)
PAGE = 16
BLOCK = 4096


def rows_of(tokens: Sequence[int], width: int = 8) -> Any:
    """State that depends on every token before it, as real state does."""

    def rows(p0: int, p1: int) -> bytes:
        parts = [hashlib.blake2b(repr(list(tokens[: p + 1])).encode(), digest_size=width) for p in range(p0, p1)]
        return b"".join(part.digest() for part in parts)

    return rows


def prompt(seed: int, n: int = 40) -> list[int]:
    return [(seed * 7919 + i * 31) % 50000 for i in range(n)]


def store_at(cache: Path, model: bytes = MODEL, **options: Any) -> _kernels.Store:
    return _kernels.Store(str(cache), model, page_size=PAGE, written_by="test", **options)


def fill(cache: Path, *prompts: list[int], model: bytes = MODEL, user: str = "", width: int = 8) -> None:
    with store_at(cache, model) as store:
        for tokens in prompts:
            store.save(tokens, rows_of(tokens, width), user=user, backend="cpu")


def conversation(tokens: list[int]) -> str:
    return f"{_kernels.conversation_hash(tokens):016x}"


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    try:
        main([str(argument) for argument in arguments])
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Any:
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def snapshot(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every name, time and byte below a folder; of a lock only the time, because it names who looked last."""
    found = {}
    for path in sorted(folder.rglob("*")):
        info = path.lstat()
        data = path.read_bytes() if path.is_file() and path.name != "lock" else b""
        found[str(path.relative_to(folder))] = (info.st_mode, info.st_mtime_ns, data)
    return found


def segment_files(cache: Path, model: bytes = MODEL) -> list[Path]:
    return sorted((cache / model.hex() / "pages").glob("*.seg"))


def flip_last_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


# Runs llama-run as a Python does that the native module is not built for.
WITHOUT_NATIVE = (
    sys.executable,
    "-c",
    "import sys; sys.modules['pyrun._kernels'] = None; from pyrun.cli.main import main; main(sys.argv[1:])",
)


def make_clone(root: Path) -> Path:
    (root / "llama.cpp").mkdir()
    shutil.copy(ROOT / "llama.cpp" / "upstream.toml", root / "llama.cpp")
    return root


def make_built_clone(root: Path) -> Path:
    """It runs the server that was built here."""
    make_clone(root)
    (root / "llama.cpp" / "build").mkdir()
    (root / "llama.cpp" / "build" / "cpu").symlink_to(BINARY.parents[1])
    (root / "pyrun").symlink_to(ROOT / "pyrun")
    return root


@contextmanager
def holding(cache: Path) -> Iterator[int]:
    """Another process that has the store of MODEL open."""
    code = (
        "import sys; from pyrun import _kernels\n"
        f"store = _kernels.Store({str(cache)!r}, bytes.fromhex({MODEL.hex()!r}), page_size={PAGE})\n"
        "print('ready', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
    finally:
        process.stdin.close()
        process.wait(20)
        process.stdout.close()


@contextmanager
def as_somebody_else(*paths: Path) -> Iterator[None]:
    """Without the rights of root, which may read and write everything."""
    if os.geteuid() != 0:
        yield
        return
    for path in paths:
        os.chown(path, 65534, 65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
