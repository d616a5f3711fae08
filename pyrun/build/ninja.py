"""Runs cmake and ninja: everything goes into a log, whose end is shown on failure; ninja's counter is the progress."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pyrun.errors import UserError

COUNTER = re.compile(rb"\[(\d+)/(\d+)\] ")
SHOWN_LINES = 25


def run_logged(
    command: Sequence[str],
    log: Path,
    *,
    env: Mapping[str, str] | None = None,
    on_step: Callable[[int, int], None] | None = None,
) -> None:
    """Runs the command with its output in the log. A failure shows the last lines of it, with a hint."""
    with log.open("ab") as file:
        file.write(f"$ {' '.join(command)}\n".encode())
        file.flush()
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, **(env or {})}
        ) as process:
            assert process.stdout is not None
            largest = 0
            try:
                for line in process.stdout:
                    file.write(line)
                    step = COUNTER.match(line)
                    if step and on_step:
                        done, total = int(step.group(1)), int(step.group(2))
                        largest = max(largest, total)
                        if total > largest // 2:  # a small build inside the build counts for itself
                            on_step(done, total)
                code = process.wait()
            except BaseException:
                # Ctrl-C reaches the tool as well; it must be gone before anyone may start the next build.
                process.terminate()
                raise
    if code != 0:
        raise _failure(command, code, log)


def _failure(command: Sequence[str], code: int, log: Path) -> UserError:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    tail = "\n".join("  " + line for line in _relevant(lines))
    name = Path(command[0]).name
    return UserError(f"{name} failed with exit code {code}:\n{tail}", f"{_hint(lines)}; the full log is {log}")


def _relevant(lines: list[str]) -> list[str]:
    """What matters begins at ninja's FAILED line, where there is one: parallel jobs print below it."""
    for index in range(len(lines) - 1, -1, -1):
        if lines[index].startswith("FAILED: "):
            failed = [line for line in lines[index + 1 :] if len(line) < 400]
            return failed[:SHOWN_LINES]
    return lines[-SHOWN_LINES:]


def _hint(lines: list[str]) -> str:
    recent = "\n".join(lines[-200:])
    if "No space left on device" in recent:
        return "the disk is full: free about 1 GB and run again, the build goes on where it stopped"
    if "Killed signal terminated program" in recent or "out of memory" in recent:
        return "the compiler ran out of memory: run again with --jobs 1"
    if "No CMAKE_CXX_COMPILER could be found" in recent or "is not able to compile a simple test program" in recent:
        return "the C++ compiler does not work"
    return "`llama-run build --clean` starts afresh"
