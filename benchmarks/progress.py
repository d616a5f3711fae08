"""How far a run is and how long it will still take: a bar on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import time

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from pyrun import console

LINE_SECONDS = 20.0


class RunProgress:
    """Work is counted in tokens evaluated, an answer's token as several: that is what takes the time."""

    ANSWER_TOKEN = 8.0

    def __init__(self) -> None:
        self.total = 0.0
        self.done = 0.0
        self._started = time.monotonic()
        self._last_line = self._started
        self._bar: Progress | None = None

    def open(self, total: float) -> None:
        self.total = max(total, 1.0)
        self._started = time.monotonic()
        if console.err.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TaskProgressColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[left]}", markup=False),
                console=console.err,
                transient=True,
            )
            self._task = self._bar.add_task("starting", total=self.total, left="")
            self._bar.start()

    def say(self, label: str) -> None:
        if self._bar is not None:
            self._bar.update(self._task, description=label)
        elif time.monotonic() - self._last_line >= LINE_SECONDS:
            self._last_line = time.monotonic()
            left = self._left()
            console.say(f"{label}: {self.done / self.total:.0%}{', ' + left if left else ''}")

    def advance(self, n_evaluated: float, n_answer: float) -> None:
        self.reach(self.done + n_evaluated + self.ANSWER_TOKEN * n_answer)

    def reach(self, done: float) -> None:
        """Plans are estimates; a part that is through counts as through."""
        self.done = min(done, self.total)
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, left=self._left())

    def _left(self) -> str:
        if self.done < 0.02 * self.total or self.done >= self.total:
            return ""
        seconds = (time.monotonic() - self._started) * (self.total / self.done - 1)
        return f"about {console.duration(seconds)} left"

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
