"""The benchmark's pure parts: statistics, texts, limits, what makes a result invalid."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
from gguf import GGUFReader
from gguf.quants import dequantize

from benchmarks import bench as bench_module
from benchmarks import cli, limits, machine, run, shapes
from benchmarks.bench import Bench, Fresh, Options, Sent, anchors_of, broken_promise, context_for
from benchmarks.cli import with_default
from benchmarks.limits import eval_ms, restore_limit_ms
from benchmarks.peers import Answer, Message, Pace, PeerError, Remote, Server, SlotServer
from benchmarks.progress import RunProgress
from benchmarks.records import Result
from benchmarks.results import (
    Room,
    chosen_run_folder,
    file_name,
    new_result,
    new_run_folder,
    times_shorter,
    verdict,
    write_json,
)
from benchmarks.run import Programs, Request
from benchmarks.scenarios import agent, chat, fleet, load, restart
from benchmarks.stats import percentile, percentiles, summarise
from benchmarks.text import tool_schemas, words
from pyrun.build.unpatched import compiler_fixes
from pyrun.errors import UserError
from pyrun.home import Home, find_home
from pyrun.models.facts import ModelFacts
from pyrun.models.find import Model, find_model
from pyrun.models.look import look
from pyrun.upstream.patches import read_series


def answer(
    evaluated: int = 1, reused: int = 99, source: str = "cold", miss: str | None = None, text: str = "a"
) -> Answer:
    timings: dict[str, Any] = {"cache_n": reused, "prompt_n": evaluated, "cache_source": source}
    if miss:
        timings["cache_miss"] = {"reason": miss, "at": 1}
    return Answer(text, timings, 10.0, 20.0)


def bench_of(folder: Path, **options: Any) -> Bench:
    """Of no model that is there."""
    return Bench(
        options=Options(**options),
        model=Model(folder / "toy.gguf", "toy", 1),
        facts=cast(ModelFacts, SimpleNamespace(context=None)),
        backend="cpu",
        server=folder / "llama-server",
        unpatched=folder / "upstream",
        chat_template=None,
        caches=folder,
        limits={},
        progress=RunProgress(),
        folder=folder / "results",
    )


# Statistics.


def test_spread_hides_an_outlier() -> None:
    assert summarise([10, 11, 30]) == {"n": 3, "median": 11, "min": 10, "max": 30, "spread": 20 / 11}
    assert summarise([0.0])["spread"] == 0


@pytest.mark.parametrize(("percent", "expected"), [(0, 1), (50, 2.5), (90, 3.7), (100, 4)])
def test_percentile_is_not_on_the_line_between_neighbours(percent: float, expected: float) -> None:
    assert percentile([4, 1, 3, 2], percent) == pytest.approx(expected)


def test_percentiles_of_one_value_fail() -> None:
    assert set(percentiles([7.0]).values()) == {7.0}


# Texts.


def test_text_differs_between_machines() -> None:
    assert words(8, "restart") == words(8, "restart") != words(8, "other")
    assert len(words(500, 1).split()) == 500


def test_tool_schemas_are_not_json() -> None:
    tools = [json.loads(line) for line in tool_schemas(400, "agent").split("\n")]
    assert len(tools) > 5 and all(tool["parameters"]["required"] for tool in tools)


def test_generated_chats_have_other_lengths_than_real_ones() -> None:
    chats = chat.generate(400, longest_answer=2000)
    assert chats == chat.generate(400, longest_answer=2000)
    questions = [exchange.question_tokens for each in chats for exchange in each]
    answers = [exchange.answer_tokens for each in chats for exchange in each]
    assert 35 < statistics.median(questions) < 70 and statistics.mean(questions) > 1.5 * statistics.median(questions)
    assert 130 < statistics.median(answers) < 220 and statistics.median(answers) > statistics.median(questions)
    assert min(map(len, chats)) == 2 and max(map(len, chats)) == chat.MOST_TURNS
    assert 3 < statistics.mean(map(len, chats)) < 5
    assert max(exchange.answer_tokens for each in chat.generate(50, 64) for exchange in each) == 64


def test_given_chats_are_not_understood(tmp_path: Path) -> None:
    sharegpt = {"conversations": [{"from": "human", "value": "A?"}, {"from": "gpt", "value": "B."}] * 2}
    openai = {"messages": [{"role": "user", "content": f"{n}?"} for n in range(3)]}
    alone = {"messages": [{"role": "user", "content": "only one"}]}
    path = tmp_path / "chats.json"
    path.write_text(json.dumps([sharegpt, alone, openai]))
    read = chat.read_chats(path, 10, 32)
    assert [[exchange.question for exchange in each] for each in read] == [["A?", "A?"], ["0?", "1?", "2?"]]
    path.write_text(json.dumps([alone, {"messages": ["hi", "ho"]}, {"messages": 5}, "hi"]))
    with pytest.raises(UserError, match="no conversation with two questions"):
        chat.read_chats(path, 10, 32)
    with pytest.raises(UserError, match="cannot read conversations"):
        chat.read_chats(tmp_path / "missing", 10, 32)


def test_agents_script_is_not_a_session() -> None:
    turns = [(turn, [dict(m) for m in turn.conversation.messages]) for turn in agent.script("system", words)]
    assert len(turns) == 11
    assert [turn.restart_before for turn, _ in turns].count(True) == 1
    assert all(messages[0] == {"role": "system", "content": "system"} for _, messages in turns)
    assert all(messages[-1]["role"] == "user" for _, messages in turns)
    for _, messages in turns:  # templates refuse two of the same in a row
        roles = [message["role"] for message in messages[1:]]
        assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]
    branch = next(messages for turn, messages in turns if turn.what == "branch back to turn 3")
    assert branch[:-1] == turns[2][1][:-1] and branch[-1] != turns[2][1][-1]
    results = [
        len(messages[-1]["content"]) for _, messages in turns if messages[-1]["content"].startswith("Tool result")
    ]
    assert len(results) >= 5 and results[1] < results[3]


# Contexts, limits, patience.


@pytest.mark.parametrize(
    ("wanted", "asked", "trained", "expected"),
    [(5500, None, None, 6144), (15800, None, 8192, 8192), (5500, 2048, 8192, 2048), (1024, None, 4096, 1024)],
)
def test_context_is_larger_than_the_model_knows(
    wanted: int, asked: int | None, trained: int | None, expected: int
) -> None:
    assert context_for(wanted, asked, trained) == expected


def test_limit_forgets_that_one_token_takes_a_whole_pass() -> None:
    assert eval_ms(1, prefill=1000, decode=50) == 20
    assert eval_ms(100, prefill=1000, decode=50) == 100
    assert restore_limit_ms(2e9, 1e9, 1, prefill=1000, decode=50) == 2020


def test_page_cache_is_said_to_be_dropped_when_it_is_not(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"x" * (1 << 20))
    assert 0 <= limits.resident_part(path) <= 1
    if limits.forget([path]):
        assert limits.resident_part(path) < limits.RESIDENT
        path.read_bytes()
        assert limits.resident_part(path) > 0.9


def test_reading_is_measured_and_its_file_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LEAST_BYTES", limits.CHUNK * 2)
    measured = limits.measure_reading(tmp_path, 1)
    assert measured["bytes"] == limits.CHUNK * 2 and measured["sequential_bytes_per_s"]["median"] > 0
    assert not list(tmp_path.iterdir())


def test_full_disk_is_a_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("benchmarks.limits.os.write", refuse)
    with pytest.raises(UserError, match="No space left on device") as error:
        limits.measure_reading(tmp_path, 1)
    assert "--cache-folder" in (error.value.hint or "") and not list(tmp_path.iterdir())


def test_clock_counts_the_memory_that_is_read_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_patience_does_not_follow_the_measured_speed() -> None:
    pace = Pace()
    before = pace.patience(5000)
    fast = {"prompt_n": 500, "prompt_per_second": 1000.0, "predicted_n": 20, "predicted_per_second": 50.0}
    pace.learn(Answer("", fast, 0, 0))
    assert pace.patience(5000) < before / 10
    assert pace.patience(50_000) > pace.patience(5000) + 200
    pace.learn(Answer("", {"prompt_n": 1, "prompt_per_second": 1.0}, 0, 0))
    assert pace.prefill == 1000, "one token tells nothing about prefill"


def test_patience_forgets_that_clients_wait_for_each_other() -> None:
    alone, crowded = Pace(), Pace()
    crowded.clients = 16
    assert crowded.patience(1000) - Pace.QUIET_SECONDS == 16 * (alone.patience(1000) - Pace.QUIET_SECONDS)


def test_large_state_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


# What makes a result invalid.


def test_new_tokens_are_counted_from_the_wrong_prompt() -> None:
    sent = Sent()
    assert sent.add([1, 2, 3]).new == 3
    assert sent.add([1, 2, 9, 9]).new == 2
    assert sent.add([1, 2, 3, 4]).new == 1
    assert sent.add([1, 2, 3, 4]).new == 1, "the last token is always evaluated"


def test_anchor_is_promised_where_prompts_have_parted() -> None:
    sent = Sent()
    assert sent.add([1, 2, 3, 4, 5, 6], (2, 4, 6)) == Fresh(6, 6)
    assert sent.add([1, 2, 3, 4, 5, 9, 9], (2, 4, 7)) == Fresh(2, 3), "from the one at 4"
    assert sent.add([1, 2, 3, 9], (2, 3, 4)) == Fresh(1, 2), "from the one at 2"
    assert sent.add([8, 8], (1, 2)) == Fresh(2, 2)


def test_anchors_are_expected_in_the_middle_of_messages() -> None:
    def tokenise(messages: Sequence[dict[str, str]]) -> list[int]:
        return [ord(c) for m in messages for c in f"<{m['role'][0]}>{m['content']}"]

    chat = [("system", "abc"), ("user", "de"), ("assistant", "f"), ("user", "gh")]
    messages = [{"role": role, "content": content} for role, content in chat]
    assert anchors_of(messages, tokenise) == (9, 18, 20), "<s>abc<u>, <s>abc<u>de<a>f<u>, and all"


@pytest.mark.parametrize(
    ("given", "restores_at", "broken"),
    [
        (answer(evaluated=10), "any_token", False),
        (answer(evaluated=11, miss="parted"), "any_token", True),
        (answer(evaluated=900, miss="recompute_faster"), "any_token", False),
        (answer(evaluated=90, miss="no_anchor"), "anchors", False),
        (answer(evaluated=90, miss="new_tokens"), "anchors", False),
        (answer(evaluated=90, miss="corrupt"), "anchors", True),
        (answer(evaluated=200, miss="no_anchor"), "anchors", True),
        (answer(evaluated=90, miss="nothing_stored"), "anchors", True),
        (answer(evaluated=10, miss="nothing_stored"), "anchors", False),
    ],
)
def test_broken_promise_goes_unnoticed(given: Answer, restores_at: str, broken: bool) -> None:
    assert (broken_promise(given, Fresh(10, 90), restores_at) is not None) is broken


STATS = {"restores_at": "any_token", "damaged": {"bad_checksum": 2, "truncated": 0}}


@pytest.mark.parametrize(
    ("warm", "ram", "problems", "notes"),
    [
        (answer(), answer(source="hot"), 0, 0),
        (answer(evaluated=100, reused=0, source="none", miss="corrupt"), answer(source="hot"), 1, 0),
        (answer(evaluated=100, reused=0, source="none", miss="recompute_faster"), answer(source="warm"), 0, 1),
        (answer(source="slot"), answer(evaluated=2, source="cold"), 2, 0),
    ],
)
def test_reuse_that_was_not_promised_is_valid(warm: Answer, ram: Answer, problems: int, notes: int) -> None:
    result = new_result("restart", {})
    restart._check(result, "small", warm, ram, STATS)
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
def test_warm_answer_differs_and_nobody_says_so(peer: str, again: str, warm: str, where: str | None) -> None:
    result = new_result("restart", {})
    restart._compare(result, Named(peer), "small", "one two", again, warm)  # type: ignore[arg-type]
    assert [name for name in ("problems", "notes") if result[name]] == ([where] if where else [])
    if where == "problems":
        assert "character 5" in result["problems"][0]


class Scripted(Server):
    """Answers without a process, phase after phase."""

    def __init__(self, name: str, folder: Path, *answers: Answer) -> None:
        super().__init__(name, folder / "program", folder / "model", (), folder / "log", cache=folder / "store")
        self.answers = list(answers)

    def start(self) -> None:
        (self.cache or Path()).mkdir(exist_ok=True)

    def warm_up(self) -> None:
        pass

    def chat(self, messages: Sequence[Message], max_tokens: int, **extra: object) -> Answer:
        return self.answers.pop(0)


STATS_OF_A_CACHE: dict[str, Any] = {
    "restores_at": "any_token",
    "damaged": {},
    "counters": {"bytes_read": 1, "bytes_from_ram": 1, "loads": 0},
    "speed": {"copy_bytes_per_s": 0},
}


def play_round(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *answers: Answer) -> Result:
    """One round of `restart` with these answers: cold, again, warm, from RAM."""
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
def test_answer_of_a_round_is_compared_with_nothing(
    cold: Answer, ram: Answer, problem: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(restart, "LEAST_TWIN", limits.CHUNK)
    again, warm = answer(source="slot", text="one two"), answer(text="one two")
    result = play_round(monkeypatch, tmp_path, cold, again, warm, ram)
    assert len(result["problems"]) == (1 if problem else 0)
    assert problem is None or problem in result["problems"][0]


def test_page_cache_that_stays_goes_unmentioned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = tmp_path / "store" / "page"
    stored.parent.mkdir()
    stored.write_bytes(b"x" * 10)
    seen: list[Path] = []

    def keep(paths: Sequence[Path]) -> bool:
        seen.extend(paths)
        return False

    monkeypatch.setattr(bench_module, "forget", keep)
    result = new_result("agent", {})
    assert not bench_of(tmp_path).forget(result, Scripted("llama-run", tmp_path), tmp_path / "twin")
    assert seen == [stored, tmp_path / "twin"]
    assert "stayed in the page cache" in result["notes"][0]


def test_cache_that_cannot_be_emptied_counts_as_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: Path) -> None:
        raise PermissionError(13, "Permission denied", str(folder / "page"))

    (tmp_path / "store").mkdir()
    monkeypatch.setattr(shutil, "rmtree", refuse)
    with pytest.raises(PeerError, match="cannot empty the cache of llama-run: .*page: Permission denied"):
        bench_of(tmp_path).empty_caches(Scripted("llama-run", tmp_path))


@pytest.mark.parametrize(("ctx", "hint"), [(1024, "larger --ctx"), (4096, "a prefix of 904 fits")])
def test_hint_is_a_prefix_that_no_prompt_can_have(ctx: int, hint: str, tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    bench.ctx = ctx
    with pytest.raises(UserError, match="needs a context of") as error:
        agent.play(bench, new_result("agent", {}))
    assert hint in (error.value.hint or "")


def test_other_answer_than_upstreams_goes_unmentioned() -> None:
    result = new_result("agent", {})
    agent._note_partings(result, ["a", "b", "c"], ["a", "B"])
    assert not result["problems"] and "part in turn 2:" in result["notes"][0]
    same = new_result("agent", {})
    agent._note_partings(same, ["a", "b"], [])
    assert not same["notes"]


def test_damage_changes_nothing(tmp_path: Path) -> None:
    large, small = tmp_path / "a" / "1.seg", tmp_path / "index.bin"
    large.parent.mkdir()
    large.write_bytes(bytes(10_000))
    small.write_bytes(bytes(10))
    restart.damage(tmp_path)
    assert len(large.read_bytes()) == 10_000 and large.read_bytes().count(0) == 9_999
    assert small.read_bytes() == bytes(10)


@pytest.mark.parametrize(("size", "expected"), [("small", 1100), ("large", 15500), ("2048", 2048)])
def test_size_is_not_understood(size: str, expected: int) -> None:
    assert restart.size_of(size) == expected


def test_unknown_size_is_a_traceback() -> None:
    with pytest.raises(UserError, match="no size 'huge'"):
        restart.size_of("huge")


# What follows from what was measured.


def test_ratio_or_limit_of_a_restart_is_wrong() -> None:
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


def test_slow_cold_start_makes_a_better_ratio() -> None:
    def peer(cold: float, warm: float) -> dict[str, Any]:
        return {"ttft_ms": {"cold": summarise([cold]), "warm": summarise([warm])}}

    peers = {"llama-run": peer(2000, 20), "upstream": peer(1000, 1010), "http://elsewhere": peer(10, 10)}
    case: Any = {"size": "small", "peers": {**peers, "slots": {"rounds": []}}}
    assert times_shorter(case, "llama-run") == 50, "against upstream's cold start, which is the fastest"
    assert times_shorter(case, "slots") is None
    assert times_shorter(case, "http://elsewhere") is None, "it was asked something else"


def test_agents_estimates_are_wrong() -> None:
    turns = [
        {"n_tokens": 1000, "new": 1000, "evaluated": 1000, "ttft_ms": 1000.0, "prefill_per_s": 500.0},
        {"n_tokens": 1500, "new": 500, "evaluated": 650, "ttft_ms": 300.0, "prefill_per_s": 600.0},
    ]
    result: Any = {"peers": {"llama-run": {"turns": turns}, "upstream": {"turns": []}}}
    agent.end({}, result)
    assert turns[1]["cold_ms_estimated"] == 3000
    assert result["peers"]["llama-run"]["evaluated_per_new"] == 1.1


def test_fleets_bytes_are_wrong() -> None:
    turns = [
        {
            "conversation": c,
            "turn": t,
            "ttft_ms": 10.0 * c,
            "whole_bytes": 100.0 * t,
            "written_bytes": 5,
            "disk_bytes": c,
        }
        for t in (1, 2)
        for c in (1, 2, 3)
    ]
    result: Any = {"peers": {"llama-run": {"turns": turns}}}
    fleet.end({}, result)
    peer = result["peers"]["llama-run"]
    assert (peer["written_bytes"], peer["whole_bytes"], peer["disk_bytes"]) == (30, 900, 3)
    assert peer["whole_disk_bytes"] == 600
    assert peer["ttft_ms"]["others"]["median"] == 25 and peer["ttft_ms"]["first"]["n"] == 1


@pytest.mark.parametrize(
    ("scenario", "default", "names"),
    [
        (restart, 128, {"sizes", "repeat", "damage"}),
        (agent, 48, {"prefix"}),
        (chat, 128, {"conversations", "source"}),
        (fleet, 48, {"prefix", "conversations", "turns"}),
        (load, 128, {"prefix", "clients", "requests"}),
    ],
)
def test_settings_are_not_those_that_were_used(
    scenario: ModuleType, default: int, names: set[str], tmp_path: Path
) -> None:
    bench = bench_of(tmp_path)
    bench.ctx = 4096
    told = run._settings(bench, scenario)
    assert set(told) == {"ctx", "peers", "flags", "tokens", *names}
    assert told["ctx"] == 4096 and told["tokens"] == default
    assert scenario.settings(bench_of(tmp_path, tokens=7))["tokens"] == 7
    more = scenario.plan(bench_of(tmp_path, tokens=100 + default), 32768)
    assert more > scenario.plan(bench, 32768), "the answers are as long as ever"


def test_second_run_finds_somebody_elses_server_warm(tmp_path: Path) -> None:
    ours = bench_of(tmp_path, peers=("upstream",))
    assert ours.salted("system") == "system", "runs with our own servers cannot be repeated"
    first, second = (bench_of(tmp_path, peers=("upstream", "http://elsewhere")) for _ in range(2))
    assert first.salted("system").endswith(" system") and first.salted("system") != second.salted("system")
    assert first.salted("system") == first.salted("system"), "peers get different prompts"
    assert run._settings(first, agent)["salt"] == first.salt


@pytest.mark.parametrize("scenario", [agent, chat, fleet, load])
def test_conversation_begins_without_salt(
    scenario: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "http://elsewhere"
    bench = bench_of(tmp_path, peers=(url,), conversations=2, clients=2, requests=1, turns=1)
    bench.ctx = 32768
    bench.facts.kv_per_token = bench.facts.checkpoint_bytes = lambda *types: 1  # type: ignore[method-assign]
    sent: list[str] = []

    class Elsewhere(Remote):
        def start(self) -> None:
            pass

        def chat(self, messages: Sequence[Message], max_tokens: int, **extra: object) -> Answer:
            sent.append(messages[0]["content"])
            return answer()

    monkeypatch.setattr(bench, "peers", lambda slots=1: [Elsewhere(url, url)])
    monkeypatch.setattr(Elsewhere, "warm_up", lambda self: None)
    result = new_result(scenario.NAME, {})
    scenario.play(bench, result)
    assert sent and all(text.startswith(bench.salt) for text in sent) and not result["problems"]


@pytest.mark.parametrize(("words", "expected"), [([], None), (["--tokens", "128"], 128), (["--tokens", "7"], 7)])
def test_tokens_that_nobody_asked_for(words: list[str], expected: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Request] = []

    def note(home: Home, request: Request) -> int:
        asked.append(request)
        return 0

    monkeypatch.setattr(cli, "run", note)
    with pytest.raises(SystemExit):
        cli.main(["agent", *words])
    assert asked[0].options.tokens == expected


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ("  (none)", "cpu"),
        ("  CUDA0: NVIDIA H200 (143167 MiB, 142645 MiB free)", "cuda"),
        ("  Vulkan0: AMD Radeon Graphics (16384 MiB, 16000 MiB free)", "vulkan"),
        ("  ROCm0: AMD Radeon Graphics (16384 MiB, 16000 MiB free)", "rocm"),
    ],
)
def test_servers_backend_is_taken_for_the_cpu(devices: str, expected: str, tmp_path: Path) -> None:
    server = tmp_path / "llama-server"
    server.write_text(f"#!/bin/sh\necho 'Available devices:'\necho '{devices}'\n")
    server.chmod(0o755)
    request = Request(("restart",), Options(), server=server)
    assert run._choose_backends(Home(tmp_path), request) == (expected,)


@pytest.mark.parametrize("wanted", ["foo", "cpu,vulkan"])
def test_unknown_backend_is_a_missing_program(wanted: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"no backend '{wanted}'") as error:
        run._choose_backends(Home(tmp_path), Request(("restart",), Options(), backends=(wanted,)))
    assert "cpu, vulkan, rocm, cuda; for several, give --backend several times" in (error.value.hint or "")


def test_peers_program_is_unknown(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for path in (ours, theirs):
        path.write_text(f"#!/bin/sh\necho loading >&2\necho 'version: {path.name}'\necho 'built with a compiler'\n")
        path.chmod(0o755)
    peers = dict.fromkeys(("llama-run", "upstream", "slots", "http://elsewhere"), "a server")
    assert Programs(ours, theirs, peers).of_peers() == {"llama-run": ours, "upstream": theirs, "slots": theirs}
    told = machine.describe_program(theirs)
    assert told["says"] == "version: theirs" and "built with a compiler" in told["version"]
    assert told["sha256"] == hashlib.sha256(theirs.read_bytes()).hexdigest()


# Files and words.


def test_names_lead_out_of_the_results() -> None:
    assert file_name("http://host:80/v1/../x") == "http---host-80-v1-..-x"
    assert file_name("../..") == "unnamed"


def test_second_run_of_a_minute_overwrites_the_first(tmp_path: Path) -> None:
    assert new_run_folder(tmp_path) != new_run_folder(tmp_path)


def test_out_that_cannot_be_written_is_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write to .*file/out: Not a directory"):
        chosen_run_folder(tmp_path / "file" / "out")
    assert not list(chosen_run_folder(tmp_path / "a" / "b").iterdir())


def test_two_runs_are_mixed(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(UserError, match="is not empty"):
        chosen_run_folder(tmp_path)


def test_refused_call_leaves_a_folder_in_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    request = Request(("restart",), Options(), server=tmp_path / "file", cache_folder=tmp_path / "file" / "caches")
    monkeypatch.setattr(run, "_choose_models", lambda home, wanted: [])
    with pytest.raises(UserError, match="cannot write to .*caches"):
        run.run(Home(tmp_path), request)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def request_of(tmp_path: Path, *models: Path, scenario: str = "restart", **options: Any) -> Request:
    """With a program that is there, and is no server."""
    (tmp_path / "llama-server").write_text("")
    return Request(
        (scenario,),
        Options(**options),
        models=tuple(map(str, models)),
        backends=("cpu",),
        server=tmp_path / "llama-server",
        out=tmp_path / "out",
        cache_folder=tmp_path / "caches",
    )


def toy_of(tmp_path: Path, name: str) -> Path:
    small = dataclasses.replace(shapes.SHAPES["14b"], width=256, n_tokens=600)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(shapes.SHAPES, "small", small)
        patch.setattr(shapes, "POOL_BYTES", 1 << 20)
        shapes.write_shape("small", tmp_path / name, layers=1)
    return tmp_path / name


def test_broken_model_is_found_after_the_first_was_measured(tmp_path: Path) -> None:
    whole, broken = toy_of(tmp_path, "whole.gguf"), tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(40))
    with pytest.raises(UserError, match="broken"):
        run.run(find_home(), request_of(tmp_path, whole, broken))
    assert not (tmp_path / "out").exists()


def test_missing_chats_are_found_when_the_run_has_begun(tmp_path: Path) -> None:
    request = request_of(tmp_path, toy_of(tmp_path, "m.gguf"), scenario="chat", chats=tmp_path / "none.json")
    with pytest.raises(UserError, match="cannot read conversations"):
        run.run(find_home(), request)
    assert not (tmp_path / "out").exists()


def test_error_in_the_middle_loses_the_first_models_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured: list[str] = []

    def measure(bench: Bench, scenarios: tuple[str, ...], summary: dict[str, Any]) -> None:
        if measured:
            raise UserError(f"no room in {tmp_path}/caches", "make some")
        measured.append(bench.model.name)
        result = new_result("restart", {}) | {"status": "complete", "noise": dict.fromkeys(("before", "after"), NOISE)}
        summary["scenarios"]["restart"] = result
        summary["limits"]["reading"] = READING
        write_json(bench.folder / "summary.json", summary)

    monkeypatch.setattr(run, "_measure", measure)
    monkeypatch.setattr("benchmarks.plots.can_draw", lambda: False)
    models = [toy_of(tmp_path, name) for name in ("a.gguf", "b.gguf")]
    assert run.run(find_home(), request_of(tmp_path, *models)) == 1
    about = json.loads((tmp_path / "out" / "run.json").read_text())
    assert about["status"] == "failed" and about["problem"] == "no room in DIR (make some)"
    assert len(json.loads((tmp_path / "out" / "summary.json").read_text())["models"]) == 1
    assert "no room" in capsys.readouterr().err


NOISE = {"load_average": [0.1], "cores": 2}
READING: dict[str, Any] = {
    "page_cache": "dropped",
    "readers": 4,
    "sequential_bytes_per_s": summarise([1e9]),
    "parallel_bytes_per_s": summarise([1e9]),
}


def test_answers_are_lost_before_the_end(tmp_path: Path) -> None:
    room = Room(tmp_path / "restart")
    room.record("llama-run", "cold", answer())
    room.record("llama-run", "warm", answer())
    lines = [json.loads(line) for line in (tmp_path / "restart" / "raw.jsonl").read_text().splitlines()]
    assert [line["label"] for line in lines] == ["cold", "warm"] and lines[0]["timings"]["cache_n"] == 99


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ([], ["restart"]),
        (["--model", "agent"], ["restart", "--model", "agent"]),
        (["agent", "--prefix", "500"], ["agent", "--prefix", "500"]),
        (["--help"], ["--help"]),
    ],
)
def test_command_is_guessed_wrongly(given: list[str], meant: list[str]) -> None:
    assert with_default(given) == meant


def test_peer_is_built_with_our_patches() -> None:
    series = read_series(find_home().patches)
    fixes = compiler_fixes(series)
    assert [patch.name[:4] for patch in fixes] == ["0005"]
    assert all("kernels" not in patch.diff for patch in fixes)


# Models of real shapes.


def test_random_blocks_do_not_make_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "POOL_BYTES", 1 << 20)
    small = dataclasses.replace(shapes.SHAPES["14b"], width=1024, n_tokens=2000)
    monkeypatch.setitem(shapes.SHAPES, "small", small)
    path = tmp_path / "small.gguf"
    assert shapes.write_shape("small", path, layers=1) == path.stat().st_size
    facts = look(find_model(find_home(), str(path)))  # as a server reads it: every tensor has its place
    assert (facts.architecture, facts.layers, facts.vocabulary) == ("qwen3", 1, 2000)
    tensors = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
    down = tensors["blk.0.ffn_down.weight"]
    assert down.tensor_type.name == "Q4_0" and list(down.shape) == [17408, 1024]
    values = dequantize(down.data, down.tensor_type)
    assert abs(values.mean()) < 0.02 * values.std(), "a mean would be what is left of every sum"
    assert values.std() * 17408**0.5 == pytest.approx(1.5, rel=0.1)
    assert tensors["token_embd.weight"].tensor_type.name == "Q8_0"


def test_anchor_of_the_large_hybrid_has_another_size() -> None:
    words = shapes.padded_vocabulary(1000)
    weights = shapes.LargeWeights("35b-a3b", words, 2048, shapes.TYPES["q4_0"])
    metadata = shapes.SHAPES["35b-a3b"].build(weights, 4)
    n_experts = [blocks for name, blocks in weights.order.items() if blocks and "_exps" in name]
    assert len(n_experts) == 12 and n_experts[0].shape == (256, 512, 2048)
    assert sum("ssm_out" in name for name in weights.order) == 3 and metadata["ssm.inner_size"] == 4096
    assert words.tokens[-3:] == words.special and len(words.tokens) == 1000
