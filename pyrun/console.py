"""What a person sees: data on stdout, everything else on stderr, progress only where it can move."""

from __future__ import annotations

import sys
import time
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from pyrun.errors import UserError

out = Console(soft_wrap=True, highlight=False)
err = Console(stderr=True, soft_wrap=True, highlight=False)


def say(message: str) -> None:
    err.print(escape(_encodable(message)))


def _encodable(text: str) -> str:
    """File names may hold bytes that are no text; a message about them must still come out."""
    return text.encode("utf-8", "replace").decode("utf-8")


def show_error(error: UserError) -> None:
    err.print(Text("error: ", style="bold red") + Text(_encodable(error.message)))
    if error.hint:
        show_hint(error.hint)


def show_hint(hint: str) -> None:
    err.print(Text("hint: ", style="bold cyan") + Text(_encodable(hint)))


def printable(text: str) -> str:
    """What a file is called or says may be anything, also something that a terminal obeys."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def duration(seconds: float) -> str:
    """7 -> '7 s', 75 -> '1 min 15 s', 3700 -> '1 h 1 min', 200000 -> '2 d 7 h'."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 172800:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def size(n_bytes: float) -> str:
    """812 -> '812 B', 4096 -> '4.1 kB', 5300000000 -> '5.30 GB'."""
    if n_bytes < 1000:
        return f"{n_bytes:.0f} B"
    for unit, scale, digits in (("kB", 1e3, 1), ("MB", 1e6, 1), ("GB", 1e9, 2)):
        # What rounding would show as 1000.0 belongs to the next unit.
        if n_bytes / scale < 1000 - 0.5 / 10**digits:
            return f"{n_bytes / scale:.{digits}f} {unit}"
    return f"{n_bytes / 1e12:.2f} TB"


def columns(rows: Sequence[Sequence[str]], right: Container[int] = ()) -> list[str]:
    """Rows as lines with their cells below one another; `right` names the columns that are aligned at the right.

    Not a table of rich: that cuts cells to the width of the terminal, and a name that was cut cannot be copied.
    """
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.rjust(widths[i]) if i in right else cell.ljust(widths[i]) for i, cell in enumerate(row)]
        lines.append("  ".join(cells).rstrip())
    return lines


class StepProgress:
    """Progress of work that is counted in steps: a bar on a terminal, now and then a line elsewhere."""

    LINE_SECONDS = 20.0

    def __init__(self, label: str) -> None:
        self.label = label
        self.started = time.monotonic()
        self._done = 0
        self._first_step = 0.0
        self._last_line = self.started
        self._bar: Progress | None = None
        if err.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[left]}"),
                console=err,
            )
            self._task = self._bar.add_task(label, total=None, left="")
            self._bar.start()

    def update(self, done: int, total: int) -> None:
        now = time.monotonic()
        # Work that an earlier run has done is not counted into the speed.
        if self._first_step == 0.0:
            self._first_step = now
            self._done = done
        left = self._left(done, total, now)
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total, left=left)
        elif now - self._last_line >= self.LINE_SECONDS or done == total:
            self._last_line = now
            say(f"{self.label}: {done}/{total}, {duration(now - self.started)}{', ' + left if left else ''}")

    def _left(self, done: int, total: int, now: float) -> str:
        if done <= self._done or done == total:
            return ""
        seconds = (now - self._first_step) / (done - self._done) * (total - done)
        return f"about {duration(seconds)} left"

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


class ByteProgress:
    """Progress of work that is counted in bytes: a bar with speed and time left on a terminal, elsewhere lines."""

    LINE_SECONDS = 20.0

    def __init__(self, label: str, total: int, done: int = 0) -> None:
        self.label = label
        self.total = total
        self.done = done
        self._first = done  # what an earlier run has done is not counted into the speed
        self._started: float | None = None
        self._last_line = time.monotonic()
        self._bar: Progress | None = None
        if err.is_terminal and total > 0:
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                DownloadColumn(),
                TextColumn("{task.fields[left]}"),
                console=err,
            )
            self._task = self._bar.add_task(label, total=total, completed=done, left="")
            self._bar.start()

    def advance(self, n_bytes: int) -> None:
        """Less than nothing, where something has to be done again."""
        now = time.monotonic()
        self.done += n_bytes
        if self._started is None and n_bytes > 0:
            self._started, self._first = now, self.done
        self._first = min(self._first, self.done)
        if self._bar is not None:
            self._bar.update(self._task, description=self.label, completed=self.done, left=self._left(now))
        elif now - self._last_line >= self.LINE_SECONDS:
            self._last_line = now
            left = self._left(now)
            say(f"{self.label}: {size(self.done)} of {size(self.total)}{', ' + left if left else ''}")

    def _left(self, now: float) -> str:
        seconds = now - self._started if self._started is not None else 0.0
        new = self.done - self._first
        if seconds < 1 or new <= 0 or self.done >= self.total:
            return ""
        return f"{size(new / seconds)}/s, about {duration(seconds / new * (self.total - self.done))} left"

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


@contextmanager
def waiting(message: str) -> Iterator[None]:
    """A spinner with the message on a terminal, one line elsewhere."""
    if err.is_terminal:
        with err.status(escape(message)):
            yield
    else:
        say(message)
        yield


def is_interactive() -> bool:
    return sys.stdin.isatty() and err.is_terminal
