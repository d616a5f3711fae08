"""Shows a person everything: data goes to stdout, the rest to stderr, progress only where it can move."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import Progress as Bar
from rich.text import Text

from pyrun.errors import UserError

COMMAND_VARIABLE = "LLAMA_RUN_COMMAND"  # ./llama-run sets it
OWN_COMMAND = re.compile(r"(?<=`)llama-run(?= )|(?<![\w./-])llama-run(?= --)")
out = Console(soft_wrap=True, highlight=False)
err = Console(stderr=True, soft_wrap=True, highlight=False)


def say(message: str) -> None:
    """Its terminal may be gone and its disk full: what is done goes on all the same."""
    with suppress(OSError):
        err.print(escape(_encodable(message)))


def _encodable(text: str) -> str:
    """File names may hold bytes that are no text; a message about them must still come out."""
    return as_typed(text).encode("utf-8", "replace").decode("utf-8")


def as_typed(text: str) -> str:
    """Names our commands as they can be copied: ./llama-run says so where `llama-run` alone would not be found."""
    command = os.environ.get(COMMAND_VARIABLE)
    return OWN_COMMAND.sub(lambda _: shlex.quote(command), text) if command else text


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
    """Makes lines of rows, with their cells below one another; `right` names the columns that are aligned at the right.

    It is no table of rich: that cuts cells to the width of the terminal, and a name that was cut cannot be copied.
    """
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.rjust(widths[i]) if i in right else cell.ljust(widths[i]) for i, cell in enumerate(row)]
        lines.append("  ".join(cells).rstrip())
    return lines


@dataclass(frozen=True)
class Unit:
    """What work is counted in, and how an amount of it is shown."""

    columns: tuple[type[ProgressColumn], ...]  # they stand beside the bar
    told: Callable[[float, float, float], str]  # what a line says of done, total, and seconds since the start
    speed: Callable[[float], str] | None = None  # tells so much in a second; None where nobody understands it
    tells_end: bool = False  # a last line says that all is done


STEPS = Unit(
    (MofNCompleteColumn, TimeElapsedColumn),
    lambda done, total, seconds: f"{done:.0f}/{total:.0f}, {duration(seconds)}",
    tells_end=True,
)
BYTES = Unit(
    (DownloadColumn,), lambda done, total, _: f"{size(done)} of {size(total)}", speed=lambda rate: f"{size(rate)}/s"
)
PARTS = Unit((TaskProgressColumn, TimeElapsedColumn), lambda done, total, _: f"{done / total:.0%}")


class Progress:
    """How far work is and how long it will still take: a bar on a terminal, now and then a line elsewhere.

    Where the total is not known yet, the first report brings it. What an earlier run has done is not counted into the
    speed, so that it is measured from the first report on; with `from_start`, all of the work is this run's.
    """

    LINE_SECONDS = 20.0
    LEAST_SECONDS = 1.0  # a speed over a shorter time means nothing

    def __init__(
        self,
        label: str,
        unit: Unit,
        total: float | None = None,
        done: float = 0,
        *,
        from_start: bool = False,
        transient: bool = False,  # the bar goes away at the end
    ) -> None:
        self.label = label
        self.total = total
        self.done = done
        self._unit = unit
        self._started = self._last_line = time.monotonic()
        self._counted_from = (self._started, done) if from_start else None  # when, and what was done by then
        self._bar: Bar | None = None
        if err.is_terminal and (total is None or total > 0):
            self._bar = Bar(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                *(column() for column in unit.columns),
                TextColumn("{task.fields[left]}", markup=False),
                console=err,
                transient=transient,
            )
            self._task = self._bar.add_task(label, total=total, left="")
            self._bar.update(self._task, completed=done)
            self._bar.start()

    def rename(self, label: str) -> None:
        self.label = label
        self._show()

    def advance(self, amount: float) -> None:
        """The amount is below zero where something has to be done again."""
        self.reach(self.done + amount)

    def reach(self, done: float, total: float | None = None) -> None:
        self.total = self.total if total is None else total
        grown, self.done = done > self.done, done
        if self._counted_from is None:
            self._counted_from = (time.monotonic(), done) if grown else None
        elif done < self._counted_from[1]:
            self._counted_from = (self._counted_from[0], done)
        self._show()

    def _show(self) -> None:
        now = time.monotonic()
        left = self._left(now)
        if self._bar is not None:
            self._bar.update(self._task, description=self.label, completed=self.done, total=self.total, left=left)
        elif self.total and (now - self._last_line >= self.LINE_SECONDS or self._is_end()):
            self._last_line = now
            told = self._unit.told(self.done, self.total, now - self._started)
            say(f"{self.label}: {told}{', ' + left if left else ''}")

    def _is_end(self) -> bool:
        return self._unit.tells_end and self.done == self.total

    def _left(self, now: float) -> str:
        """Tells the speed, where that says something, and the time that the rest will take at it."""
        if self._counted_from is None or not self.total or self.done >= self.total:
            return ""
        began, at_first = self._counted_from
        seconds, new = now - began, self.done - at_first
        if seconds < self.LEAST_SECONDS or new <= 0:
            return ""
        speed = f"{self._unit.speed(new / seconds)}, " if self._unit.speed else ""
        return f"{speed}about {duration(seconds / new * (self.total - self.done))} left"

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


@contextmanager
def waiting(message: str) -> Iterator[Callable[[str], None]]:
    """Shows a spinner with the message on a terminal, and one line elsewhere.

    What it yields is told how it goes: that stands behind the message, or on a line of its own now and then.
    """
    if err.is_terminal:
        with err.status(escape(message)) as status:
            # One line is kept: behind the spinner, a longer one would be wrapped.
            yield lambda detail: status.update(escape(_encodable(f"{message}: {detail}")[: err.width - 4]))
        return
    say(message)
    last_line = time.monotonic()

    def tell(detail: str) -> None:
        nonlocal last_line
        if time.monotonic() - last_line >= Progress.LINE_SECONDS:
            last_line = time.monotonic()
            say(f"{message}: {detail}")

    yield tell


@contextmanager
def spinning(message: str) -> Iterator[None]:
    """Shows a spinner with the message on a terminal, and nothing elsewhere: for what seldom takes long."""
    with err.status(escape(message)) if err.is_terminal else nullcontext():
        yield


def is_interactive() -> bool:
    return sys.stdin.isatty() and err.is_terminal
