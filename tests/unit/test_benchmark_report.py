"""What becomes of results that lie in a folder: tables, plots, comparisons; and peers that are somebody else's."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from benchmarks import plots
from benchmarks.cli import main
from benchmarks.compare import Figure, compare, figures, judge, notes
from benchmarks.peers import PeerError, Remote
from benchmarks.results import read_models
from benchmarks.stats import percentiles, summarise
from pyrun.errors import UserError

LOAD = {"load_average": [0.1, 0.1, 0.1], "cores": 2}


def result(scenario: str, **content: Any) -> dict[str, Any]:
    filled = {
        "scenario": scenario,
        "status": "complete",
        "settings": {"conversations": 2, "clients": 2},
        "problems": [],
    }
    return {**filled, "notes": ["a note"], "failed": [], "noise": {"before": LOAD, "after": LOAD}, **content}


def turn(number: int, ttft: float, **more: Any) -> dict[str, Any]:
    row = {"what": f"turn {number}", "turn": number, "conversation": 1, "n_tokens": 1000, "new": 100, "reused": 900}
    times = {"ttft_ms": ttft, "total_ms": ttft + 50, "cold_ms_estimated": 900.0}
    return {**row, "evaluated": 100, "source": "hot", "miss": None, **times, **more}


def summary_of(warm_ms: float = 20.0) -> dict[str, Any]:
    rounds = [{"cold": {"n_tokens": 1100}}]
    times = {"cold": summarise([2000.0, 2010.0]), "warm": summarise([warm_ms, warm_ms + 1]), "ram": summarise([9.0])}
    times["ahead"] = summarise([9.5])
    ours = {
        "rounds": rounds,
        "ttft_ms": times,
        "warm_times_limit": 1.2,
        "warm_times_run_limit": 1.4,
        "ram_times_limit": 2.0,
    }
    theirs = {"rounds": rounds, "ttft_ms": {"cold": summarise([1990.0]), "warm": summarise([1995.0])}}
    session = {"turns": [turn(1, 900.0), turn(2, 100.0)], "ttft_ms_sum": 1000.0, "evaluated_per_new": 1.0}
    session["total_ms_sum"] = 1100.0
    by_turn = [
        {"turn": n, "ttft_ms": summarise([50.0 * n]), "p90_ms": 60.0, "n_tokens": 300, "evaluated": 50} for n in (1, 2)
    ]
    sails = [turn(n, 90.0, written_bytes=1e6 * n, whole_bytes=9e6, disk_bytes=3e6) for n in (1, 2)]
    fleet = {
        "turns": sails,
        "written_bytes": 3e6,
        "whole_bytes": 18e6,
        "disk_bytes": 3e6,
        "whole_disk_bytes": 9e6,
        "ttft_ms": {"first": times["cold"]},
    }
    answers = [{"ttft_ms": 10.0 * n} for n in range(1, 9)]
    load = {"answers": answers, "errors": [], "ttft_ms": percentiles([a["ttft_ms"] for a in answers])}
    crowd = {
        name: {
            "rounds": [{"answers": answers, "errors": [], "seconds": took, "new": 1000, "alone": None}] * 2,
            "seconds": summarise([took, took]),
            "p95_ms": summarise([900.0]),
            "evaluated_per_new": summarise([per_new]),
            "first_to_alone": summarise([1.02]),
        }
        for name, took, per_new in (("llama-run", 2.0, 1.01), ("off", 14.0, 7.7))
    }
    speed = summarise([1e9, 1.1e9])
    return {
        "schema": 1,
        "command": "benchmark all",
        "backend": "cpu",
        "machine": {"cpu": "A CPU", "cores": 2, "ram_bytes": 8e9, "gpus": [], "distribution": "", "system": "Linux 6"},
        "build": {"commit": "abc", "edited": False, "llama_run": "0.1.0", "pin": "0c1e57098", "says": "version 1"},
        "model": {"name": "a-model", "file": "a.gguf", "architecture": "llama", "quantisation": "Q8_0", "bytes": 1e9}
        | {"sha256": "ff"},
        "peers": {"llama-run": "ours", "upstream": "given by the user"},
        "programs": {"upstream": {"says": "version: 7", "sha256": "ee", "version": "version: 7\nbuilt somewhere"}},
        "flags": {"restart": "--parallel 1"},
        "limits": {
            "reading": {"page_cache": "dropped", "readers": 4}
            | {"sequential_bytes_per_s": speed, "parallel_bytes_per_s": speed},
            "prefill_per_s": summarise([500.0]),
        },
        "scenarios": {
            "restart": result("restart", cases=[{"size": "small", "peers": {"llama-run": ours, "upstream": theirs}}]),
            "agent": result("agent", peers={"llama-run": session, "upstream": session}),
            "chat": result("chat", peers={"llama-run": {"turns": sails, "by_turn": by_turn}}),
            "fleet": result("fleet", peers={"llama-run": fleet}),
            "load": result("load", peers={"llama-run": load}),
            "swarm": result("swarm", peers=crowd),
            "herd": result("herd", peers=crowd),
        },
    }  # fmt: skip


def write_run(folder: Path, *summaries: dict[str, Any]) -> Path:
    for number, summary in enumerate(summaries):
        place = folder / summary["backend"] / f"{summary['model']['name']}-{number}"
        place.mkdir(parents=True)
        (place / "summary.json").write_text(json.dumps(summary))
    return folder


def report(folder: Path) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["report", str(folder)])
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.fixture(autouse=True)
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take seconds; one test draws them."""
    monkeypatch.setattr(plots, "can_draw", lambda: False)


def test_report_has_every_scenario(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path, summary_of())
    assert report(run) == 0
    page = (run / "cpu" / "a-model-0" / "summary.md").read_text()
    for scenario in ("restart", "agent", "chat", "fleet", "load", "swarm", "herd"):
        assert f"## {scenario}: valid" in page
    assert "| small | llama-run | 1,100 | 2.00 s | 20.5 ms | 5% | 97.1 | 1.20 | 1.40 | 9.0 ms | 2.00 | 9.5 ms |" in page
    assert "| 1.5 MB | 3.0 MB | 18.0 MB | 3.0 MB | 9.0 MB |" in page, "bytes, each beside those of whole states"
    assert "sha256 ff" in page and "a note" in page
    assert "- upstream: given by the user; `version: 7`, sha256 ee" in page
    told = "| 1 turn 1 | hot | 1,000 | 100 | 900 | 100 | 900 ms | 950 ms | 900 ms |"
    assert told in page, "tokens, new, reused, evaluated, first token, whole request, from nothing"
    assert "| off | 2 | 14.00 s | 0% | 7.00 | 900 ms | 7.70 | 1.02 | 0 |" in page
    assert "| cpu | a-model | small |" in (run / "summary.md").read_text()
    assert json.loads((run / "summary.json").read_text())["valid"] is True
    assert "eleven turns" in capsys.readouterr().out


def test_every_plot_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(plots, "can_draw", lambda: True)
    run = write_run(tmp_path, summary_of())
    report(run)
    wanted = ("restart-cold-warm", "agent-turns", "chat-turns", "fleet-turns", "fleet-written", "load-percentiles")
    for name in wanted:
        for ending, begins in (("png", b"\x89PNG"), ("svg", b"<?xml")):
            assert (run / "cpu" / "a-model-0" / f"{name}.{ending}").read_bytes().startswith(begins), name
    assert (run / "restart.png").exists()
    alone = summary_of()
    alone["scenarios"] = {"agent": alone["scenarios"]["agent"]}
    plots.draw_model(alone, tmp_path)
    again, drawn = tmp_path / "agent-turns.svg", run / "cpu" / "a-model-0" / "agent-turns.svg"
    assert again.read_bytes() == drawn.read_bytes(), "the same data, another file"


def test_report_does_without_matplotlib(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(write_run(tmp_path, summary_of())) == 0
    assert "plots were skipped" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.png"))


def test_invalid_result_fails_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = summary_of()
    bad["scenarios"]["restart"]["problems"] = ["the warm answer parts from the cold one"]
    run = write_run(tmp_path, summary_of(), bad)
    assert report(run) == 1
    assert "invalid: restart: the warm answer parts" in capsys.readouterr().err
    assert "**Problem:** the warm answer" in (run / "cpu" / "a-model-1" / "summary.md").read_text()


def test_interrupted_run_can_be_reported(tmp_path: Path) -> None:
    cut = summary_of()
    cases = [{"size": "small", "peers": {"llama-run": {"rounds": []}}}]
    cut["scenarios"] = {
        "restart": result("restart", status="interrupted", cases=cases),
        "agent": result("agent", status="interrupted", peers={"llama-run": {"turns": []}}),
        "load": result("load", status="failed"),
    }  # fmt: skip
    run = write_run(tmp_path, cut)
    assert report(run) == 0
    assert "restart: interrupted" in (run / "cpu" / "a-model-0" / "summary.md").read_text()


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("interrupted", "was interrupted"),
        ("running", "did not come to its end"),
        ("failed", "no room"),
        ("complete", ""),
    ],
)
def test_report_says_that_a_run_was_cut_off(
    status: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path, summary_of())
    (run / "run.json").write_text(json.dumps({"status": status, "problem": "no room"}))
    report(run)
    told = capsys.readouterr().err
    assert said in told and said in (run / "summary.md").read_text()
    assert ("The run" in told) is bool(said)


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "not valid JSON"), ("[]", "not a result"), ('{"schema": 99, "model": {}}', "results of version 99")],
)
def test_broken_result_is_an_error(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "cpu" / "m").mkdir(parents=True)
    (tmp_path / "cpu" / "m" / "summary.json").write_text(content)
    with pytest.raises(UserError, match=message):
        read_models(tmp_path)


def test_empty_folder_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(tmp_path) == 1
    assert "holds no results" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (Figure(100, 95, 105), Figure(102, 99, 107), "same"),
        (Figure(100, 80, 140), Figure(125, 90, 150), "within the spread"),
        (Figure(100, 95, 105), Figure(150, 140, 160), "worse"),
        (Figure(100, 95, 105), Figure(50, 40, 60), "better"),
        (Figure(0, 0, 0), Figure(1, 1, 1), "same"),
    ],
)
def test_noise_is_not_taken_for_a_difference(a: Figure, b: Figure, expected: str) -> None:
    assert judge(a, b) == expected


def test_comparison_finds_what_became_slower(tmp_path: Path) -> None:
    slower, other = summary_of(warm_ms=40.0), copy.deepcopy(summary_of())
    del other["scenarios"]["load"]
    other["model"]["name"] = "b-model"
    table = compare(write_run(tmp_path / "a", summary_of()), write_run(tmp_path / "b", slower, other))
    rows = {(row[0], row[1]): row[2:] for row in table.rows}
    assert rows["a-model (cpu)", "restart, small, llama-run: warm"] == ("20.5 ms", "40.5 ms", "1.98", "worse")
    assert rows["a-model (cpu)", "agent, llama-run: TTFT of all turns"][-1] == "same"
    assert rows["b-model (cpu)", "restart, small, llama-run: warm"][-1] == "only in one"
    assert len(list(figures(summary_of()))) > 12


def test_unlike_runs_are_compared_with_a_warning(tmp_path: Path) -> None:
    other = summary_of()
    other["machine"] |= {"cpu": "Another CPU", "gpus": [{"name": "A GPU"}]}
    other["flags"] = {"restart": "--parallel 2", "agent": "--parallel 1"}
    other["scenarios"]["fleet"]["problems"] = ["bytes went astray"]
    other["scenarios"]["load"]["status"] = "interrupted"
    a, same, b = (
        write_run(tmp_path / name, each) for name, each in (("a", summary_of()), ("same", summary_of()), ("b", other))
    )
    assert notes(a, same) == []
    assert notes(a, b) == [
        "on different machines: a on A CPU, 2 cores and b on Another CPU, 2 cores, A GPU",
        "a-model (cpu), restart: with different flags, `--parallel 1` and `--parallel 2`",
        "b: a-model (cpu), fleet: invalid",
        "b: a-model (cpu), load: interrupted",
    ]


# Somebody else's server.


@contextmanager
def serving(events: list[str], status: int = 200) -> Iterator[str]:
    """Answers every question with these lines of a stream."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(b'{"data": [{"id": "their-model"}]}')

        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self._send("".join(f"data: {event}\n\n" for event in events).encode())

        def _send(self, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    asked: list[dict[str, Any]] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
        assert all(request["model"] == "their-model" and "ignore_eos" not in request for request in asked)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def piece(text: str) -> str:
    return json.dumps({"choices": [{"delta": {"content": text}}]})


def test_any_openai_server_is_a_peer() -> None:
    usage = {"prompt_tokens": 50, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 40}}
    events = [piece(""), piece("Hel"), piece("lo"), json.dumps({"choices": [], "usage": usage}), "[DONE]"]
    with serving(events) as url:
        peer = Remote("them", url)
        peer.start()
        answer = peer.chat([{"role": "user", "content": "Hello?"}], 8, ignore_eos=True)
    assert (answer.text, answer.n_prompt, answer.reused, answer.n_answer) == ("Hello", 50, 40, 2)
    assert 0 < answer.ttft_ms <= answer.total_ms


@pytest.mark.parametrize(
    ("events", "status", "message"),
    [
        ([piece("Hel")], 200, "before the answer did"),
        (["{"], 200, "does not answer"),
        ([json.dumps({"error": {"message": "out of memory"}})], 200, "out of memory"),
        ([], 500, "500"),
    ],
)
def test_peer_that_breaks_off_is_an_error(events: list[str], status: int, message: str) -> None:
    with serving(events, status) as url, pytest.raises(PeerError, match=message):
        Remote("them", url, model_name="their-model").chat([{"role": "user", "content": "Hello?"}], 8)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["restart", "--peers", "ollama"], "no peer 'ollama'"),
        (["agnet", "--model", "x"], "no command 'agnet' hint: commands are restart, agent, chat"),
        (["--sizes", "huge"], "no size 'huge'"),
        (["--sizes", ""], "--sizes names no size"),
        (["agent", "--server", "/nowhere/llama-server", "--model", "/nowhere.gguf"], "no file"),
    ],
)
def test_wrong_words_are_an_error(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 1
    assert message in capsys.readouterr().err.replace("\n", " ")
