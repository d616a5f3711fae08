"""How progress is told where there is no terminal to draw a bar on."""

from __future__ import annotations

import pytest

from benchmarks.progress import RunProgress
from pyrun import console


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def test_steps_are_told_now_and_then_and_at_the_end(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    progress = console.Progress("building", console.STEPS)
    for clock[0], done in ((1010.0, 41), (1030.0, 61), (1031.0, 62), (1060.0, 100)):
        progress.reach(done, 100)
    assert capsys.readouterr().err.splitlines() == [
        "building: 61/100, 30 s, about 39 s left",
        "building: 100/100, 1 min 0 s",
    ]


def test_a_runs_first_answer_counts_into_its_speed(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    progress = RunProgress()
    progress.open(1000)
    progress.say("first")
    clock[0] = 1025.0
    progress.advance(170, 10)
    clock[0] = 1030.0
    progress.say("second")
    assert capsys.readouterr().err.splitlines() == ["first: 25%, about 1 min 15 s left"]


def test_work_that_is_done_again_is_no_speed(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    progress = console.Progress("a.gguf", console.BYTES, 1000, 500)
    clock[0] = 1030.0
    progress.advance(-500)
    assert capsys.readouterr().err.splitlines() == ["a.gguf: 0 B of 1.0 kB"]
