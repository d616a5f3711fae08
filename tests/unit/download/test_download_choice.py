"""`llama-run --download`: what is asked for, found and said before."""

from __future__ import annotations

import io

import psutil
import pytest
from downloads import NAME, Q4, Q8, Machine, data
from fakes.hub import FakeHub

from pyrun import console


def test_missing_quantisation_lists_what_there_is(hub: FakeHub, machine: Machine) -> None:
    assert machine.run(NAME, "--quant", "Q5_K_M") == 1
    assert "error: maker/toy-GGUF has no Q5_K_M; it has:\n  Q4_K_M  200.0 kB\n  Q8_0    300.0 kB\n" in machine.err
    assert "hint: say which one: llama-run --download maker/toy-GGUF --quant Q4_K_M" in machine.err


def test_nearest_quantisation_is_not_taken_in_silence(hub: FakeHub, machine: Machine) -> None:
    assert machine.run(NAME, "--quant", "Q4_K_S") == 0
    assert "maker/toy-GGUF has no Q4_K_S; taking Q4_K_M, the nearest of its kind" in machine.err


def test_quantisation_is_not_guessed(hub: FakeHub, machine: Machine) -> None:
    assert machine.run(NAME) == 1
    assert "error: maker/toy-GGUF has several models:\n  Q4_K_M  200.0 kB\n  Q8_0 " in machine.err
    del hub.repos[NAME].files["toy-Q4_K_M.gguf"]
    assert machine.run(NAME) == 0  # the only one


def test_models_of_one_quantisation_can_be_told_apart(hub: FakeHub, machine: Machine) -> None:
    hub.add("maker/two", {"a-7b-Q8_0.gguf": Q8, "a-1b-Q8_0.gguf": Q4})
    assert machine.run("maker/two:Q8_0") == 1
    assert "has several models in Q8_0:\n  a-1b-Q8_0  200.0 kB\n  a-7b-Q8_0  300.0 kB" in machine.err
    assert "--quant a-1b-Q8_0" in machine.err
    assert machine.run("maker/two", "--quant", "a-7b-Q8_0") == 0


@pytest.mark.parametrize(("typed", "quant"), [("\n", "Q4_K_M"), ("9\n2\n", "Q8_0")])
def test_terminal_is_asked(
    hub: FakeHub, machine: Machine, monkeypatch: pytest.MonkeyPatch, typed: str, quant: str
) -> None:
    monkeypatch.setattr(console, "is_interactive", lambda: True)
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    assert machine.run(NAME) == 0
    assert "  1)  Q4_K_M  200.0 kB\n  2)  Q8_0    300.0 kB" in machine.err
    assert list(machine.files()) == [f"maker/toy-GGUF/toy-{quant}.gguf"]


def test_refused_question_downloads_nothing(hub: FakeHub, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "is_interactive", lambda: True)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert machine.run(NAME) == 130
    assert machine.files() == {}


def test_repository_without_models_is_an_error(hub: FakeHub, machine: Machine) -> None:
    hub.add("maker/plain-model", {"model.safetensors": b"x", "mmproj-F16.gguf": b"x"})
    assert machine.run("maker/plain-model") == 1
    assert "error: maker/plain-model has no GGUF model" in machine.err
    assert 'llama-run --download "plain model gguf"' in machine.err
    hub.add("maker/torn", {"a-00001-of-00002.gguf": b"x"})
    assert machine.run("maker/torn") == 1
    assert "error: maker/torn has only incomplete sets of files: a" in machine.err


@pytest.mark.parametrize(
    "path", ["../../../escaped.gguf", "/tmp/escaped.gguf", "a/../../b.gguf", "x\x1b[2J.gguf", "a\\b.gguf"]
)
def test_name_from_the_hub_does_not_escape_the_folder(hub: FakeHub, machine: Machine, path: str) -> None:
    hub.add("maker/evil", {path: Q4})
    assert machine.run("maker/evil") == 1
    assert "error: maker/evil has no GGUF model" in machine.err
    assert machine.files() == {} and hub.asked("resolve") == []


def test_checksum_from_the_hub_does_not_escape_the_folder(hub: FakeHub, machine: Machine) -> None:
    hub.repos[NAME].checksum = "/../../../../escaped"
    assert machine.run(NAME, "--quant", "Q8_0") == 0
    assert "note: the hub tells no checksum of toy-Q8_0.gguf; only its size was compared" in machine.err
    assert machine.files() == {"maker/toy-GGUF/toy-Q8_0.gguf": Q8}


def test_search_shows_what_matters(hub: FakeHub, machine: Machine) -> None:
    hub.add("other/toy-large-GGUF", {"toy-Q8_0.gguf": data("large", 4_000_000)}, downloads=99_999, gated=True)
    hub.add("other/toy-weights", {"model.safetensors": b"x"}, downloads=10**6)
    hub.add("other/unlike", {"x-Q8_0.gguf": b"x"})
    assert machine.run("TOY gguf") == 1
    assert machine.err.splitlines()[1:] == [
        "error: these repositories fit 'TOY gguf':",
        "  other/toy-large-GGUF  99,999 downloads  4.0 MB                gated",
        "  maker/toy-GGUF        1,234 downloads   200.0 kB to 300.0 kB",
        "hint: say which one: llama-run --download other/toy-large-GGUF",
    ]
    assert machine.run("toy gguf", "--quant", "Q8_0") == 1
    assert "Q8_0: 4.0 MB" in machine.err and "Q8_0: 300.0 kB" in machine.err
    assert "--download other/toy-large-GGUF --quant Q8_0" in machine.err


def test_choice_among_search_results_is_kept(hub: FakeHub, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("other/toy-large-GGUF", {"toy-Q8_0.gguf": Q4}, downloads=99_999)
    monkeypatch.setattr(console, "is_interactive", lambda: True)
    monkeypatch.setattr("sys.stdin", io.StringIO("2\n"))
    assert machine.run("toy", "--quant", "Q8_0") == 0
    assert machine.files() == {"maker/toy-GGUF/toy-Q8_0.gguf": Q8}


def test_search_without_results_says_so(hub: FakeHub, machine: Machine) -> None:
    assert machine.run("no such thing") == 1
    assert "error: no repository with GGUF files is called 'no such thing'" in machine.err


def test_model_beyond_the_memory_is_not_downloaded_in_silence(
    hub: FakeHub, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory._replace(total=250_000))
    assert machine.run(NAME, "--quant", "Q8_0") == 0
    warning = "warning: Q8_0 takes 300.0 kB; this machine has 250.0 kB of memory"
    assert machine.err.index(warning) < machine.err.index("downloading")
    assert machine.run(NAME, "--quant", "Q4_K_M") == 0
    assert "warning" not in machine.err


def test_slow_kernels_are_told_before(hub: FakeHub, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    hub.add("maker/slow", {"slow-Q4_1.gguf": Q4})
    assert machine.run("maker/slow") == 0
    assert "note: Q4_1 is slow on ARM processors" in machine.err


def test_progress_has_the_time_left(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    progress = console.Progress("a.gguf", console.BYTES, 10_000_000_000, 1_000_000_000)
    for clock[0] in (1010.0, 1030.0, 1031.0, 1055.0):
        progress.advance(500_000_000)
    assert capsys.readouterr().err.splitlines() == [
        "a.gguf: 2.00 GB of 10.00 GB, 25.0 MB/s, about 5 min 20 s left",
        "a.gguf: 3.00 GB of 10.00 GB, 33.3 MB/s, about 3 min 30 s left",
    ]
