"""Tries a bundle after it was made: in an empty folder, with an empty environment, it has to answer a chat."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyrun import archives
from pyrun.bundle.make import Made
from pyrun.errors import UserError
from pyrun.server.ask import direct

FOLDER = "Ein Ordner für Bündel"  # paths have spaces and umlauts
PROGRAMS = "/usr/bin:/bin"
START_SECONDS = 300
QUESTION = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 16}


@dataclass(frozen=True)
class Tried:
    answer: str | None  # None where there was no model to ask
    seconds: float  # from the start of the launcher to the first answer


def try_bundle(made: Made, model: Path | None) -> Tried:
    """`model` is asked where it is given; where the bundle has one, that is."""
    with tempfile.TemporaryDirectory(prefix="llama-run-bundle-") as temporary:
        root = Path(temporary) / FOLDER
        with tarfile.open(made.archive) as tar:
            archives.extract_all(tar, root)
        program = root / made.name / "llama-run"
        home = root / "home"
        home.mkdir()
        environment = {"PATH": PROGRAMS, "HOME": str(home), "LANG": "C.UTF-8"}
        said = _run([str(program), "--version"], environment)
        if made.manifest.version not in said:
            raise UserError(f"the bundle says {said.strip()!r}, and not that it is {made.manifest.version}")
        bundled = (root / made.name / "models").is_dir()
        if model is None and not bundled:
            _run([str(root / made.name / "bin" / "llama-server"), "--version"], environment)
            return Tried(None, 0)
        named = [] if bundled else [str(model)]
        return chat_with([str(program), "--server", *named, "--backend", "cpu"], environment)


def chat_with(command: list[str], environment: dict[str, str]) -> Tried:
    """Starts a server by this command, and asks it as soon as it answers. Its words go to a file in HOME."""
    port = _free_port()
    started = time.monotonic()
    with _running([*command, "--port", str(port)], environment) as (process, log), direct() as session:
        while time.monotonic() - started < START_SECONDS:
            if process.poll() is not None:
                break
            with contextlib.suppress(OSError):
                answer = session.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=QUESTION, timeout=60)
                if answer.status_code == 200:
                    text: Any = answer.json()["choices"][0]["message"]["content"]
                    return Tried(str(text), time.monotonic() - started)
            time.sleep(0.2)
        raise UserError(f"the bundle's server did not answer:\n{log.read_text(encoding='utf-8', errors='replace')}")


@contextlib.contextmanager
def _running(command: list[str], environment: dict[str, str]) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    log = Path(environment["HOME"]) / "said.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=environment, cwd=environment["HOME"], stdout=out, stderr=out)
        try:
            yield process, log
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)
            process.wait()


def _run(command: list[str], environment: dict[str, str]) -> str:
    result = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", check=False)
    if result.returncode != 0:
        raise UserError(f"the bundle does not run: {Path(command[0]).name} says\n{result.stderr.strip()}")
    return result.stdout + result.stderr


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
