"""A terminal for tests: a program behind a real pseudo-terminal, and the screen that a person would see."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pexpect
import pyte

PATIENCE_SECONDS = 120.0
HISTORY = 20_000


class _Screen(pyte.HistoryScreen):
    """It answers where its cursor is, as terminals do when they are asked."""

    process: Any = None

    def write_process_input(self, data: str) -> None:
        self.process.send(data)


class Terminal:
    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path, columns: int = 80, rows: int = 24
    ) -> None:
        clean = {name: value for name, value in environment.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
        self.process = pexpect.spawn(
            command[0],
            list(command[1:]),
            env={**clean, "TERM": "xterm-256color"},
            cwd=str(folder),
            dimensions=(rows, columns),
            encoding="utf-8",
            codec_errors="replace",
        )
        self.process.delaybeforesend = None
        self.screen = _Screen(columns, rows, history=HISTORY)
        self.screen.process = self.process
        self._stream = pyte.Stream(self.screen)
        self.raw = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.close(force=True)

    @property
    def lines(self) -> list[str]:
        """All that was ever scrolled away, and the screen."""
        above = ["".join(line[x].data for x in range(self.screen.columns)) for line in self.screen.history.top]
        return [line.rstrip() for line in [*above, *self.screen.display]]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def pump(self, seconds: float = 0.1) -> bool:
        """Takes what the program wrote; False when it has ended."""
        try:
            data = self.process.read_nonblocking(65536, timeout=seconds)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self.raw += data
        self._stream.feed(data)
        return True

    def wait(self, text: str, count: int = 1) -> None:
        """Until the text stands there so many times."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.text.count(text) < count:
            assert self.pump(), f"it ended, and {text!r} is not there:\n{self.text}"
            assert time.monotonic() < deadline, f"{text!r} does not come:\n{self.text}"

    def wait_for_end(self) -> int:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.pump():
            assert time.monotonic() < deadline, f"it does not end:\n{self.text}"
        self.process.close()
        code, number = self.process.exitstatus, self.process.signalstatus
        return code if code is not None else -(number or 0)

    def send(self, keys: str) -> None:
        self.process.send(keys)

    def enter(self, text: str) -> None:
        self.send(text)
        self.wait(text[-20:])
        self.send("\r")

    def paste(self, text: str) -> None:
        """As terminals do it: marked, so that line ends are not taken for Enter."""
        data = f"\x1b[200~{text}\x1b[201~".encode()
        while data:
            data = data[os.write(self.process.fileno(), data[:1024]) :]
            self.pump(0)

    def resize(self, columns: int, rows: int) -> None:
        self.process.setwinsize(rows, columns)
        self.screen.resize(rows, columns)
