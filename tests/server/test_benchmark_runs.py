"""The benchmark on the real server and a toy model: short runs, and runs in which something goes wrong."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from backend import BINARY, ONE_THREAD
from cache_server import toy
from helpers import ROOT, is_running, wait_until

pytestmark = pytest.mark.server

ENVIRONMENT = os.environ | ONE_THREAD
QUICK = ("--tokens", "8", "--prefix", "300")


def command(out: Path, model: str, *words: str) -> list[str]:
    # Our own server without its cache stands for upstream's, which would have to be built.
    programs = ["--server", str(BINARY), "--upstream", str(BINARY)]
    places = ["--out", str(out), "--cache-folder", str(out.with_name("caches")), "--model", str(toy(model))]
    return [sys.executable, "-m", "benchmarks.cli", *words, *programs, *places]


def benchmark(out: Path, model: str, *words: str) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(
        command(out, model, *words), cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=500
    )
    assert "Traceback" not in result.stderr, result.stderr
    assert not list(out.with_name("caches").iterdir()), "state was left behind"
    return result


def summary_of(out: Path) -> dict[str, Any]:
    (path,) = out.glob("cpu/*/summary.json")
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def start(out: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(out, "dense", *words),
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    """What it said; it must end, and leave no server behind."""
    children = psutil.Process(process.pid).children()
    _, said = process.communicate(timeout=300)
    assert "Traceback" not in said, said
    assert not psutil.wait_procs(children, timeout=10)[1]
    return said


def test_a_quick_run_succeeds(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("all", "--sizes", "400", "--repeat", "1", "--conversations", "2", "--peers", "upstream,slots", *QUICK)
    result = benchmark(out, "dense", *words)
    assert result.returncode == 0, result.stderr
    summary = summary_of(out)
    assert summary["model"]["sha256"] and summary["machine"]["cpu"] and summary["limits"]["reading"]
    scenarios = summary["scenarios"]
    assert [(name, each["status"]) for name, each in scenarios.items()] == [
        ("restart", "complete"), ("agent", "complete"), ("fleet", "complete"),
    ]  # fmt: skip
    for case in scenarios["restart"]["cases"]:
        ours, theirs = case["peers"]["llama-run"], case["peers"]["upstream"]
        assert ours["rounds"][0]["warm"]["evaluated"] <= 4 < theirs["rounds"][0]["warm"]["evaluated"]
        assert ours["rounds"][0]["warm"]["source"] == "cold" and ours["rounds"][0]["ram"]["source"] == "hot"
        assert ours["rounds"][0]["ahead"]["source"] == "hot" and ours["rounds"][0]["ahead"]["bytes_read"] == 0
        assert ours["warm_times_limit"] > 0
        assert "ram_times_limit" not in ours  # copies as small as a toy's do not tell how fast large ones are
    turns = scenarios["agent"]["peers"]
    assert all(len(peer["turns"]) == 11 for peer in turns.values())
    assert turns["llama-run"]["evaluated_per_new"] < turns["upstream"]["evaluated_per_new"]
    fleet = scenarios["fleet"]["peers"]
    assert all(turn["written_bytes"] > 0 for turn in fleet["llama-run"]["turns"])
    assert fleet["slots"]["written_bytes"] == pytest.approx(fleet["llama-run"]["whole_bytes"], rel=0.1)
    for text in (path.read_text() for path in out.rglob("*") if path.suffix in (".json", ".jsonl", ".log", ".md")):
        assert str(tmp_path) not in text and str(ROOT) not in text, "results tell where things lie on this machine"


@pytest.mark.parametrize(("scenario", "own"), [("herd", ()), ("swarm", ("--requests", "2", "--slots", "2"))])
def test_crowd_evaluates_what_is_new(scenario: str, own: tuple[str, ...], tmp_path: Path) -> None:
    words = (scenario, "--clients", "4", *own, "--repeat", "2", "--peers", "off", *QUICK)
    result = benchmark(tmp_path / "out", "dense", *words)
    assert result.returncode == 0, result.stderr
    peers = summary_of(tmp_path / "out")["scenarios"][scenario]["peers"]
    assert [len(peer["rounds"]) for peer in peers.values()] == [2, 2]
    assert peers["llama-run"]["evaluated_per_new"]["max"] < 1.2 < peers["off"]["evaluated_per_new"]["median"]


def test_model_with_anchors_gives_a_valid_result(tmp_path: Path) -> None:
    result = benchmark(tmp_path / "out", "hybrid-moe", "restart", "--sizes", "400", "--repeat", "1", "--tokens", "8")
    assert result.returncode == 0, result.stderr
    (case,) = summary_of(tmp_path / "out")["scenarios"]["restart"]["cases"]
    assert 1 < case["peers"]["llama-run"]["rounds"][0]["warm"]["evaluated"] <= 4


@pytest.mark.parametrize("scenario", ["agent", "fleet"])
def test_conversation_of_a_model_with_anchors_gives_a_valid_result(scenario: str, tmp_path: Path) -> None:
    own = ("--conversations", "3") if scenario == "fleet" else ()
    result = benchmark(tmp_path / "out", "hybrid-moe", scenario, *own, *QUICK)
    assert result.returncode == 0, result.stderr
    turns = summary_of(tmp_path / "out")["scenarios"][scenario]["peers"]["llama-run"]["turns"]
    assert all(turn["reused"] for turn in turns[1:])
    if scenario == "agent":
        assert turns[6]["evaluated"] > turns[6]["new"] + 16, "no branch goes on from an anchor further back"


@pytest.mark.parametrize("scenario", ["chat", "load"])
def test_a_quick_conversation_succeeds(scenario: str, tmp_path: Path) -> None:
    own = ("--conversations", "2") if scenario == "chat" else ("--clients", "2", "--requests", "2", "--prefix", "300")
    result = benchmark(tmp_path / "out", "dense", scenario, "--tokens", "8", *own)
    assert result.returncode == 0, result.stderr
    peer = summary_of(tmp_path / "out")["scenarios"][scenario]["peers"]["llama-run"]
    if scenario == "chat":
        assert len(peer["by_turn"]) >= 2
    else:
        assert len(peer["answers"]) == 4 and not peer["errors"] and peer["tokens_per_s"] > 0


def test_corrupted_store_gives_an_invalid_result(tmp_path: Path) -> None:
    result = benchmark(tmp_path / "out", "dense", "--sizes", "600", "--repeat", "1", "--tokens", "8", "--damage")
    assert result.returncode == 1
    said = " ".join(result.stderr.split())
    assert "the server says: corrupt" in said and "damaged files were set aside" in said
    assert "the run failed" in said
    assert summary_of(tmp_path / "out")["scenarios"]["restart"]["problems"]


def test_second_run_does_not_go_into_the_same_folder(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "run.json").write_text("{}")
    result = benchmark(tmp_path / "out", "dense", "--sizes", "400")
    assert result.returncode == 1 and "is not empty" in " ".join(result.stderr.split())
    assert (tmp_path / "out" / "run.json").read_text() == "{}"


def test_size_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    result = benchmark(tmp_path / "out", "dense", "--sizes", "large", "--ctx", "1024")
    assert result.returncode == 1
    assert "no size fits a context of 1024 tokens" in result.stderr


def test_killed_server_is_an_error(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start(out, "--sizes", "600", "--repeat", "2", "--tokens", "8", "--peers", "upstream")
    log = out / "cpu" / toy("dense").stem / "restart" / "upstream.log"
    wait_until(lambda: log.exists() and "listening" in log.read_text(errors="replace"), 300, "upstream runs")
    servers: set[psutil.Process] = set()

    def kill_upstreams() -> bool:
        """One that is ending anyway is not missed, so the next one is killed as well, until the benchmark ends."""
        for child in psutil.Process(process.pid).children():
            servers.add(child)
            with contextlib.suppress(psutil.NoSuchProcess):
                words = child.cmdline()  # the benchmark's own, for a moment
                if words[:1] == [str(BINARY)] and "--cache-ssd" not in words:  # ours has a cache
                    child.kill()
        return not is_running(process.pid)

    wait_until(kill_upstreams, 300, "the benchmark gives up on upstream")
    said = finish(process)
    assert not psutil.wait_procs(servers, timeout=10)[1], "a server was left behind"
    assert process.returncode == 1
    assert "invalid: restart: upstream ended" in said and "SIGKILL" in said
    peers = summary_of(out)["scenarios"]["restart"]["cases"][0]["peers"]
    assert len(peers["llama-run"]["rounds"]) == 2, "the others do not go on"
    assert len(peers["upstream"]["rounds"]) == 1


def test_ctrl_c_keeps_what_is_done(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start(out, "--sizes", "300,600", "--repeat", "2", "--tokens", "8")
    done = out / "cpu" / toy("dense").stem / "restart" / "300.json"
    wait_until(done.exists, 300, "the first size is done")
    process.send_signal(signal.SIGINT)
    said = finish(process)
    assert process.returncode == 130 and "what was done is kept" in said
    result = summary_of(out)["scenarios"]["restart"]
    assert result["status"] == "interrupted"
    assert result["cases"][0]["peers"]["llama-run"]["ttft_ms"]["warm"]["n"] == 2
    assert "restart: interrupted" in (next(out.glob("cpu/*/summary.md"))).read_text()
