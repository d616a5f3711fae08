"""Tells how far a run is, counted in what takes the time."""

from __future__ import annotations

from pyrun import console


class RunProgress:
    """Work is counted in tokens evaluated, and a token of an answer as several: it takes that much longer."""

    ANSWER_TOKEN = 8.0

    def __init__(self) -> None:
        self._shown: console.Progress | None = None
        self._done = 0.0

    def open(self, total: float) -> None:
        self._shown = console.Progress("starting", console.PARTS, max(total, 1.0), from_start=True, transient=True)

    def say(self, label: str) -> None:
        if self._shown is not None:
            self._shown.rename(label)

    def advance(self, n_evaluated: float, n_answer: float) -> None:
        self.reach(self._done + n_evaluated + self.ANSWER_TOKEN * n_answer)

    def reach(self, done: float) -> None:
        """Plans are estimates, so that more may be done than was planned; a part that is through counts as through."""
        self._done = done
        if self._shown is not None and self._shown.total is not None:
            self._shown.reach(min(done, self._shown.total))

    def close(self) -> None:
        if self._shown is not None:
            self._shown.close()
