"""The scenarios that play conversations: `agent`, `chat`, `fleet` and `load`."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from fakes.bench import answer, bench_of

from benchmarks import run
from benchmarks.peers import Answer, Message, Remote
from benchmarks.results import (
    new_result,
)
from benchmarks.scenarios import agent, chat, fleet, load, restart
from benchmarks.text import words
from pyrun.errors import UserError


def test_generated_chats_have_the_lengths_of_real_ones() -> None:
    chats = chat.generate(400, longest_answer=2000)
    assert chats == chat.generate(400, longest_answer=2000)
    questions = [exchange.question_tokens for each in chats for exchange in each]
    answers = [exchange.answer_tokens for each in chats for exchange in each]
    assert 35 < statistics.median(questions) < 70 and statistics.mean(questions) > 1.5 * statistics.median(questions)
    assert 130 < statistics.median(answers) < 220 and statistics.median(answers) > statistics.median(questions)
    assert min(map(len, chats)) == 2 and max(map(len, chats)) == chat.MOST_TURNS
    assert 3 < statistics.mean(map(len, chats)) < 5
    assert max(exchange.answer_tokens for each in chat.generate(50, 64) for exchange in each) == 64


def test_given_chats_are_understood(tmp_path: Path) -> None:
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


def test_agents_script_is_a_session() -> None:
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


@pytest.mark.parametrize(("ctx", "hint"), [(1024, "larger --ctx"), (4096, "a prefix of 904 fits")])
def test_hint_is_a_prefix_that_fits(ctx: int, hint: str, tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    bench.ctx = ctx
    with pytest.raises(UserError, match="needs a context of") as error:
        agent.play(bench, new_result("agent", {}))
    assert hint in (error.value.hint or "")


def test_other_answer_than_upstreams_is_noted() -> None:
    result = new_result("agent", {})
    agent._note_partings(result, ["a", "b", "c"], ["a", "B"])
    assert not result["problems"] and "part in turn 2:" in result["notes"][0]
    same = new_result("agent", {})
    agent._note_partings(same, ["a", "b"], [])
    assert not same["notes"]


def test_agents_estimates_follow_from_its_turns() -> None:
    turns = [
        {"n_tokens": 1000, "new": 1000, "evaluated": 1000, "ttft_ms": 1000.0, "prefill_per_s": 500.0},
        {"n_tokens": 1500, "new": 500, "evaluated": 650, "ttft_ms": 300.0, "prefill_per_s": 600.0},
    ]
    result: Any = {"peers": {"llama-run": {"turns": turns}, "upstream": {"turns": []}}}
    agent.end({}, result)
    assert turns[1]["cold_ms_estimated"] == 3000
    assert result["peers"]["llama-run"]["evaluated_per_new"] == 1.1


def test_fleets_bytes_are_the_sum_of_its_turns() -> None:
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
def test_settings_are_those_that_were_used(scenario: ModuleType, default: int, names: set[str], tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    bench.ctx = 4096
    told = run._settings(bench, scenario)
    assert set(told) == {"ctx", "peers", "flags", "tokens", *names}
    assert told["ctx"] == 4096 and told["tokens"] == default
    assert scenario.settings(bench_of(tmp_path, tokens=7))["tokens"] == 7
    more = scenario.plan(bench_of(tmp_path, tokens=100 + default), 32768)
    assert more > scenario.plan(bench, 32768), "the answers are as long as ever"


def test_second_run_finds_somebody_elses_server_cold(tmp_path: Path) -> None:
    ours = bench_of(tmp_path, peers=("upstream",))
    assert ours.salted("system") == "system", "runs with our own servers cannot be repeated"
    first, second = (bench_of(tmp_path, peers=("upstream", "http://elsewhere")) for _ in range(2))
    assert first.salted("system").endswith(" system") and first.salted("system") != second.salted("system")
    assert first.salted("system") == first.salted("system"), "peers get different prompts"
    assert run._settings(first, agent)["salt"] == first.salt


@pytest.mark.parametrize("scenario", [agent, chat, fleet, load])
def test_conversation_begins_with_salt(scenario: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
