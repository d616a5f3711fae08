"""A run of the benchmark: its words, programs, models and files."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from fakes.bench import answer

from benchmarks import cli, machine, run, shapes
from benchmarks.bench import Bench, Options
from benchmarks.cli import with_default
from benchmarks.results import (
    Room,
    chosen_run_folder,
    file_name,
    new_result,
    new_run_folder,
    write_json,
)
from benchmarks.run import Programs, Request
from benchmarks.stats import summarise
from pyrun.build.unpatched import compiler_fixes
from pyrun.errors import UserError
from pyrun.home import Home, find_home
from pyrun.upstream.patches import read_series


@pytest.mark.parametrize(("words", "expected"), [([], None), (["--tokens", "128"], 128), (["--tokens", "7"], 7)])
def test_tokens_are_asked_for_only_when_given(
    words: list[str], expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_servers_backend_is_what_its_devices_say(devices: str, expected: str, tmp_path: Path) -> None:
    server = tmp_path / "llama-server"
    server.write_text(f"#!/bin/sh\necho 'Available devices:'\necho '{devices}'\n")
    server.chmod(0o755)
    request = Request(("restart",), Options(), server=server)
    assert run._choose_backends(Home(tmp_path), request) == (expected,)


@pytest.mark.parametrize("wanted", ["foo", "cpu,vulkan"])
def test_unknown_backend_is_an_error_with_a_remedy(wanted: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"no backend '{wanted}'") as error:
        run._choose_backends(Home(tmp_path), Request(("restart",), Options(), backends=(wanted,)))
    assert "cpu, vulkan, rocm, cuda; for several, give --backend several times" in (error.value.hint or "")


def test_program_of_every_peer_is_known(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for path in (ours, theirs):
        path.write_text(f"#!/bin/sh\necho loading >&2\necho 'version: {path.name}'\necho 'built with a compiler'\n")
        path.chmod(0o755)
    peers = dict.fromkeys(("llama-run", "upstream", "slots", "http://elsewhere"), "a server")
    assert Programs(ours, theirs, peers).of_peers() == {"llama-run": ours, "upstream": theirs, "slots": theirs}
    told = machine.describe_program(theirs)
    assert told["says"] == "version: theirs" and "built with a compiler" in told["version"]
    assert told["sha256"] == hashlib.sha256(theirs.read_bytes()).hexdigest()


def test_names_stay_within_the_results() -> None:
    assert file_name("http://host:80/v1/../x") == "http---host-80-v1-..-x"
    assert file_name("../..") == "unnamed"


def test_second_run_of_a_minute_has_a_folder_of_its_own(tmp_path: Path) -> None:
    assert new_run_folder(tmp_path) != new_run_folder(tmp_path)


def test_out_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write to .*file/out: Not a directory"):
        chosen_run_folder(tmp_path / "file" / "out")
    assert not list(chosen_run_folder(tmp_path / "a" / "b").iterdir())


def test_two_runs_are_not_mixed(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(UserError, match="is not empty"):
        chosen_run_folder(tmp_path)


def test_refused_call_leaves_nothing_in_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_broken_model_is_found_before_anything_is_measured(tmp_path: Path) -> None:
    whole, broken = toy_of(tmp_path, "whole.gguf"), tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(40))
    with pytest.raises(UserError, match="broken"):
        run.run(find_home(), request_of(tmp_path, whole, broken))
    assert not (tmp_path / "out").exists()


def test_missing_chats_are_found_before_the_run_begins(tmp_path: Path) -> None:
    request = request_of(tmp_path, toy_of(tmp_path, "m.gguf"), scenario="chat", chats=tmp_path / "none.json")
    with pytest.raises(UserError, match="cannot read conversations"):
        run.run(find_home(), request)
    assert not (tmp_path / "out").exists()


def test_error_in_the_middle_keeps_the_first_models_results(
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


def test_answers_are_written_as_they_come(tmp_path: Path) -> None:
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
def test_command_is_restart_unless_told(given: list[str], meant: list[str]) -> None:
    assert with_default(given) == meant


def test_peer_is_built_without_our_patches() -> None:
    series = read_series(find_home().patches)
    fixes = compiler_fixes(series)
    assert [patch.name[:4] for patch in fixes] == ["0005"]
    assert all("kernels" not in patch.diff for patch in fixes)
