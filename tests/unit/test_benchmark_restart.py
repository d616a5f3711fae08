"""The scenario `restart`: its rounds, what it compares, and what follows from its figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes.bench import Scripted, answer, bench_of

from benchmarks import limits
from benchmarks.peers import Answer
from benchmarks.records import Result
from benchmarks.results import (
    new_result,
    times_shorter,
    verdict,
)
from benchmarks.scenarios import restart
from benchmarks.stats import summarise
from pyrun.errors import UserError

HOT = answer(source="hot")
STATS = {"restores_at": "any_token", "damaged": {"bad_checksum": 2, "truncated": 0}}


@pytest.mark.parametrize(
    ("warm", "ram", "ahead", "problems", "notes"),
    [
        (answer(), HOT, HOT, 0, 0),
        (answer(evaluated=100, reused=0, source="none", miss="corrupt"), HOT, HOT, 1, 0),
        (answer(evaluated=100, reused=0, source="none", miss="recompute_faster"), answer(source="warm"), HOT, 0, 1),
        (answer(source="slot"), answer(evaluated=2, source="cold"), HOT, 2, 0),
        (answer(), HOT, answer(source="cold"), 1, 0),
    ],
)
def test_reuse_that_was_not_promised_is_invalid(
    warm: Answer, ram: Answer, ahead: Answer, problems: int, notes: int
) -> None:
    result = new_result("restart", {})
    restart._check(result, "small", warm, ram, ahead, STATS)
    assert (len(result["problems"]), len(result["notes"])) == (problems, notes)
    assert verdict(result) == ("invalid" if problems else "running")
    if problems == 1:
        assert "2 damaged files were set aside" in result["problems"][0]


class Named:
    def __init__(self, name: str) -> None:
        self.name = name


@pytest.mark.parametrize(
    ("peer", "again", "warm", "where"),
    [
        ("llama-run", "one two", "one two", None),
        ("llama-run", "one two", "one too", "problems"),
        ("llama-run", "one too", "one too", "notes"),  # a process that never stopped says it as well
        ("upstream", "one two", "one too", "notes"),
    ],
)
def test_warm_answer_that_differs_is_told(peer: str, again: str, warm: str, where: str | None) -> None:
    result = new_result("restart", {})
    restart._compare(result, Named(peer), "small", "one two", again, warm)  # type: ignore[arg-type]
    assert [name for name in ("problems", "notes") if result[name]] == ([where] if where else [])
    if where == "problems":
        assert "character 5" in result["problems"][0]


STATS_OF_A_CACHE: dict[str, Any] = {
    "restores_at": "any_token",
    "damaged": {},
    "counters": {"bytes_read": 1, "bytes_from_ram": 1, "loads": 0},
    "speed": {"copy_bytes_per_s": 0},
}


def play_round(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *answers: Answer) -> Result:
    """One round of `restart` with these answers: cold, again, warm, from RAM, read ahead."""
    bench = bench_of(tmp_path)
    monkeypatch.setattr(bench, "calibrate", lambda peer: None)
    monkeypatch.setattr(bench, "stats", lambda peer, label, flush=False: STATS_OF_A_CACHE)
    peer = Scripted("llama-run", tmp_path, *answers)
    result = new_result("restart", {})
    restart._round(bench, result, {"size": "100", "peers": {peer.name: {"rounds": []}}}, peer, 0)
    return result


COLD = answer(evaluated=100, reused=0, source="none", text="one two")


@pytest.mark.parametrize(
    ("cold", "ram", "problem"),
    [
        (COLD, answer(source="hot", text="one two"), None),
        (COLD, answer(source="hot", text="one too"), "100, ram: the answer parts from the cold one"),
        (
            answer(evaluated=40, reused=60, text="one two"),
            answer(source="hot", text="one two"),
            "60 tokens of the cold",
        ),
    ],
)
def test_answer_of_a_round_is_compared_with_the_cold_one(
    cold: Answer, ram: Answer, problem: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(restart, "LEAST_TWIN", limits.CHUNK)
    again, warm = answer(source="slot", text="one two"), answer(text="one two")
    result = play_round(monkeypatch, tmp_path, cold, again, warm, ram, answer(source="hot", text="one two"))
    assert len(result["problems"]) == (1 if problem else 0)
    assert problem is None or problem in result["problems"][0]


def test_damage_changes_one_byte(tmp_path: Path) -> None:
    large, small = tmp_path / "a" / "1.seg", tmp_path / "index.bin"
    large.parent.mkdir()
    large.write_bytes(bytes(10_000))
    small.write_bytes(bytes(10))
    restart.damage(tmp_path)
    assert len(large.read_bytes()) == 10_000 and large.read_bytes().count(0) == 9_999
    assert small.read_bytes() == bytes(10)


@pytest.mark.parametrize(("size", "expected"), [("small", 1100), ("large", 15500), ("2048", 2048)])
def test_size_is_a_name_or_a_number(size: str, expected: int) -> None:
    assert restart.size_of(size) == expected


def test_unknown_size_is_an_error() -> None:
    with pytest.raises(UserError, match="no size 'huge'"):
        restart.size_of("huge")


def test_ratio_and_limit_of_a_restart_follow_from_its_rounds() -> None:
    def row(cold_ms: float, warm_ms: float, speed: float | None = None) -> dict[str, Any]:
        cold = {"ttft_ms": cold_ms, "prefill_per_s": 1000.0, "decode_per_s": 100.0, "n_tokens": 100}
        warm = {"ttft_ms": warm_ms, "bytes_read": 5e7, "bytes_from_ram": 0, "evaluated": 1, "read_bytes_per_s": speed}
        ram = {"ttft_ms": 15.0, "bytes_from_ram": 5e7, "copy_bytes_per_s": 1e10, "evaluated": 1}
        return {"cold": cold, "warm": warm, "ram": ram}

    interrupted = {"cold": {"ttft_ms": 999.0}}
    rounds = [row(1000, 50), row(1100, 60), row(1200, 90), interrupted]
    result: Any = {"cases": [{"size": "small", "peers": {"llama-run": {"rounds": rounds}, "upstream": {"rounds": []}}}]}
    told: Any = {"reading": {"sequential_bytes_per_s": {"median": 1e9}}}
    restart.end(told, result)
    assert "beside_bytes_per_s" not in told["reading"]
    peer = result["cases"][0]["peers"]["llama-run"]
    assert peer["ttft_ms"]["warm"]["median"] == 60 and peer["ttft_ms"]["cold"]["n"] == 4
    assert peer["times_shorter"] == pytest.approx(1050 / 60)
    assert peer["warm_times_limit"] == pytest.approx(1.0), "50 MB at 1 GB/s, and a token of 10 ms"
    assert peer["ram_times_limit"] == pytest.approx(1.0)

    rounds[:] = [row(1000, 50, speed=5e8), row(1000, 55, speed=5e8)]
    restart.end(told, result)
    assert [round(r["warm"]["limit_ms"]) for r in rounds] == [110, 110], "50 MB at what was read beside it"
    assert [round(r["warm"]["run_limit_ms"]) for r in rounds] == [60, 60], "50 MB at the run's own speed"
    assert peer["warm_times_limit"] == pytest.approx(52.5 / 110)
    assert peer["warm_times_run_limit"] == pytest.approx(52.5 / 60), "a slow moment of the disk hides a slow restore"
    assert told["reading"]["beside_bytes_per_s"]["median"] == 5e8


def test_slow_cold_start_makes_no_better_ratio() -> None:
    def peer(cold: float, warm: float) -> dict[str, Any]:
        return {"ttft_ms": {"cold": summarise([cold]), "warm": summarise([warm])}}

    peers = {"llama-run": peer(2000, 20), "upstream": peer(1000, 1010), "http://elsewhere": peer(10, 10)}
    case: Any = {"size": "small", "peers": {**peers, "slots": {"rounds": []}}}
    assert times_shorter(case, "llama-run") == 50, "against upstream's cold start, which is the fastest"
    assert times_shorter(case, "slots") is None
    assert times_shorter(case, "http://elsewhere") is None, "it was asked something else"
