"""What a model took is noted at each start, and shown beside what was expected."""

from __future__ import annotations

from pathlib import Path

from pyrun.models.calibration import KEPT, describe_starts, read_starts, remember_start, taken_of
from pyrun.models.fit import Need

GIB = 1 << 30


def test_starts_are_remembered_and_described(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "memory.json"
    assert read_starts(path) == [] and describe_starts([]) is None
    for taken in (2 * GIB, 3 * GIB, 4 * GIB):
        start = remember_start(path, "model", "cpu", Need(GIB, GIB // 2, GIB // 2), (taken - 2, 1, 1))
    assert start.factor == 2.0 and len(read_starts(path)) == 3
    told = describe_starts(read_starts(path))
    assert told == "3 starts took 1.50 of what was expected; the last one 4.00 GiB where 2.00 were"
    for _ in range(KEPT):
        remember_start(path, "other", "cpu", Need(1, 1, 1), (1, 1, 1))
    assert {one.model for one in read_starts(path)} == {"other"}


def test_what_is_broken_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "memory.json"
    for text in ("", "[", "{}", '[{"model": 1}]', "[7]"):
        path.write_text(text)
        assert read_starts(path) == []
    assert remember_start(path, "m", "cpu", Need(1, 1, 1), (3, 0, 0)).factor == 1.0
    assert len(read_starts(path)) == 1


def test_a_server_that_does_not_say_it_is_not_held_against_anything() -> None:
    assert taken_of({"enabled": False}) is None
    assert taken_of({"memory": {"model": 5, "context": 6, "compute": 7}}) == (5, 6, 7)
