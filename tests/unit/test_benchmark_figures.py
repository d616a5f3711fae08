"""The benchmark's arithmetic: statistics, texts, contexts, limits, patience."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import limits
from benchmarks.bench import context_for
from benchmarks.limits import eval_ms, restore_limit_ms
from benchmarks.peers import Answer, Pace, SlotServer
from benchmarks.stats import percentile, percentiles, summarise
from benchmarks.text import tool_schemas, words
from pyrun.errors import UserError


def test_spread_shows_an_outlier() -> None:
    assert summarise([10, 11, 30]) == {"n": 3, "median": 11, "min": 10, "max": 30, "spread": 20 / 11}
    assert summarise([0.0])["spread"] == 0


@pytest.mark.parametrize(("percent", "expected"), [(0, 1), (50, 2.5), (90, 3.7), (100, 4)])
def test_percentile_is_on_the_line_between_neighbours(percent: float, expected: float) -> None:
    assert percentile([4, 1, 3, 2], percent) == pytest.approx(expected)


def test_percentiles_of_one_value_are_that_value() -> None:
    assert set(percentiles([7.0]).values()) == {7.0}


def test_text_is_the_same_on_every_machine() -> None:
    assert words(8, "restart") == words(8, "restart") != words(8, "other")
    assert len(words(500, 1).split()) == 500


def test_tool_schemas_are_json() -> None:
    tools = [json.loads(line) for line in tool_schemas(400, "agent").split("\n")]
    assert len(tools) > 5 and all(tool["parameters"]["required"] for tool in tools)


@pytest.mark.parametrize(
    ("wanted", "asked", "trained", "expected"),
    [(5500, None, None, 6144), (15800, None, 8192, 8192), (5500, 2048, 8192, 2048), (1024, None, 4096, 1024)],
)
def test_context_is_no_larger_than_the_model_knows(
    wanted: int, asked: int | None, trained: int | None, expected: int
) -> None:
    assert context_for(wanted, asked, trained) == expected


def test_limit_counts_a_whole_pass_for_one_token() -> None:
    assert eval_ms(1, prefill=1000, decode=50) == 20
    assert eval_ms(100, prefill=1000, decode=50) == 100
    assert restore_limit_ms(2e9, 1e9, 1, prefill=1000, decode=50) == 2020


def test_page_cache_is_said_to_be_dropped_only_when_it_is(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"x" * (1 << 20))
    assert 0 <= limits.resident_part(path) <= 1
    if limits.forget([path]):
        assert limits.resident_part(path) < limits.RESIDENT
        path.read_bytes()
        assert limits.resident_part(path) > 0.9


def test_reading_is_measured_and_no_file_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LEAST_BYTES", limits.CHUNK * 2)
    measured = limits.measure_reading(tmp_path, 1)
    assert measured["bytes"] == limits.CHUNK * 2 and measured["sequential_bytes_per_s"]["median"] > 0
    assert not list(tmp_path.iterdir())


def test_full_disk_is_an_error_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("benchmarks.limits.os.write", refuse)
    with pytest.raises(UserError, match="No space left on device") as error:
        limits.measure_reading(tmp_path, 1)
    assert "--cache-folder" in (error.value.hint or "") and not list(tmp_path.iterdir())


def test_clock_does_not_count_the_memory_that_is_read_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def new_buffer() -> bytearray:
        order.append("buffer")
        return bytearray(limits.CHUNK)

    def clock() -> float:
        order.append("clock")
        return float(len(order))

    path = tmp_path / "twin"
    path.write_bytes(bytes(1000))
    monkeypatch.setattr(limits, "new_buffer", new_buffer)
    monkeypatch.setattr("benchmarks.limits.time.perf_counter", clock)
    limits.read_part(path, 0, 1000)
    assert order == ["buffer", "clock", "clock"]
    order.clear()
    limits.read_speed(path, 2)
    assert order[:3] == ["buffer", "buffer", "clock"] and "buffer" not in order[3:]


def test_patience_follows_the_measured_speed() -> None:
    pace = Pace()
    before = pace.patience(5000)
    fast = {"prompt_n": 500, "prompt_per_second": 1000.0, "predicted_n": 20, "predicted_per_second": 50.0}
    pace.learn(Answer("", fast, 0, 0))
    assert pace.patience(5000) < before / 10
    assert pace.patience(50_000) > pace.patience(5000) + 200
    pace.learn(Answer("", {"prompt_n": 1, "prompt_per_second": 1.0}, 0, 0))
    assert pace.prefill == 1000, "one token tells nothing about prefill"


def test_patience_grows_with_clients_that_wait_for_each_other() -> None:
    alone, crowded = Pace(), Pace()
    crowded.clients = 16
    assert crowded.patience(1000) - Pace.QUIET_SECONDS == 16 * (alone.patience(1000) - Pace.QUIET_SECONDS)


def test_large_state_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = SlotServer("slots", tmp_path, tmp_path, (), tmp_path / "log", slots=tmp_path / "slots")
    server.slots.mkdir()
    with (server.slots / "large.bin").open("wb") as file:
        file.truncate(40_000_000_000)
    assert server.saving_seconds() == 2000, "40 GB at 20 MB/s"
    waited: list[float] = []

    def post(path: str, body: object, seconds: float = 0) -> dict[str, Any]:
        waited.append(seconds)
        return {"n_written": 1}

    monkeypatch.setattr(server, "post", post)
    server.keep("large")
    server.bring_back("large")
    server.save_all()
    assert waited == [2600, 2600, 2600]
