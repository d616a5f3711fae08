"""`llama-run --download` against a hub on this machine that behaves, and one that does not."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import os
import random
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import huggingface_hub
import psutil
import pytest
from fakes.hub import GOOD_TOKEN, POOR_TOKEN, FakeHub, Fault, Repo
from helpers import ROOT, free_port

from pyrun import console
from pyrun.cli import download as cli_download
from pyrun.cli.main import main
from pyrun.home import Home
from pyrun.models import download
from pyrun.models.download import TRIES, carry_out
from pyrun.models.find import list_models
from pyrun.models.hub import Hub


def data(name: str, size: int = 300_000) -> bytes:
    return random.Random(name).randbytes(size)


Q4, Q8 = data("Q4", 200_000), data("Q8", 300_000)
NAME = "maker/toy-GGUF"


class Machine:
    """A clone with an empty models/, and what the last command did there."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.home = Home(root)
        self.folder = self.home.models / "maker" / "toy-GGUF"
        self.pauses: list[float] = []
        self._capsys = capsys
        self.code, self.out, self.err = 0, "", ""

    def run(self, *arguments: str) -> int:
        try:
            main(["--download", *arguments])
            self.code = 0
        except SystemExit as stop:
            self.code = int(stop.code or 0)
        captured = self._capsys.readouterr()
        self.out, self.err = captured.out, captured.err
        return self.code

    def files(self) -> dict[str, bytes]:
        """Everything in models/, apart from locks."""
        paths = [path for path in self.home.models.rglob("*") if path.is_file() and path.name != ".download.lock"]
        return {str(path.relative_to(self.home.models)): path.read_bytes() for path in paths}

    def parts(self) -> list[Path]:
        return sorted(self.home.models.rglob("*.part"))

    def leave_part(self, name: str, whole: bytes, n_bytes: int) -> None:
        """As if an earlier download had been interrupted."""
        part = self.folder / f"{name}.{hashlib.sha256(whole).hexdigest()[:12]}.part"
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(whole[:n_bytes])


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    yield
    huggingface_hub.close_session()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    with FakeHub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.add(NAME, {"toy-Q4_K_M.gguf": Q4, "toy-Q8_0.gguf": Q8, "README.md": b"# toy"}, downloads=1234)
        yield hub


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Machine:
    (tmp_path / "llama.cpp").mkdir()
    (tmp_path / "llama.cpp" / "upstream.toml").write_text((ROOT / "llama.cpp" / "upstream.toml").read_text())
    (tmp_path / "models").mkdir()
    monkeypatch.setenv("LLAMA_RUN_HOME", str(tmp_path))
    machine = Machine(tmp_path, capsys)
    monkeypatch.setattr(cli_download, "carry_out", partial(carry_out, pause=machine.pauses.append))
    return machine


# What arrives


def test_download_is_not_what_the_hub_has(hub: FakeHub, machine: Machine) -> None:
    assert machine.run(NAME, "--quant", "Q4_K_M") == 0
    assert machine.files() == {"maker/toy-GGUF/toy-Q4_K_M.gguf": Q4}
    assert machine.out == f"{machine.folder / 'toy-Q4_K_M.gguf'}\n"
    assert "downloading 200.0 kB from maker/toy-GGUF" in machine.err
    assert "1 file is complete and checked" in machine.err
    assert "serve it: llama-run --server toy-Q4_K_M\n" in machine.err
    assert [model.name for model in list_models(machine.home)] == ["toy-Q4_K_M"]


def test_second_run_downloads_again(hub: FakeHub, machine: Machine) -> None:
    machine.run(f"{NAME}:Q4_K_M")
    before = len(hub.asked("resolve"))
    assert machine.run(f"{NAME}:Q4_K_M") == 0
    assert "already in" in machine.err and "nothing to download" in machine.err
    assert machine.out == f"{machine.folder / 'toy-Q4_K_M.gguf'}\n"
    assert len(hub.asked("resolve")) == before


def test_split_set_is_incomplete(hub: FakeHub, machine: Machine) -> None:
    parts = {f"Q8_0/big-Q8_0-0000{n}-of-00003.gguf": data(f"part {n}") for n in (1, 2, 3)}
    hub.add("maker/big", {**parts, "Q4_0/big-Q4_0.gguf": Q4})
    assert machine.run("maker/big", "--quant", "Q8_0") == 0
    assert machine.files() == {f"maker/big/{path}": content for path, content in parts.items()}
    assert [(model.name, model.size) for model in list_models(machine.home)] == [("big-Q8_0", 900_000)]
    assert machine.out.endswith("big-Q8_0-00001-of-00003.gguf\n")
    assert "serve it: llama-run --server big-Q8_0\n" in machine.err


def test_unfinished_split_set_is_listed(hub: FakeHub, machine: Machine) -> None:
    parts = {f"big-Q8_0-0000{n}-of-00002.gguf": data(f"part {n}") for n in (1, 2)}
    hub.add("maker/big", dict(parts))
    second = hashlib.sha256(data("part 2")).hexdigest()
    hub.faults.append(Fault("store", times=TRIES + 1, status=503, match=second))
    assert machine.run("maker/big") == 1
    assert list_models(machine.home) == []  # and no error about missing parts
    assert [path.stat().st_size for path in machine.parts()] == [300_000, 0]
    hub.faults.clear()
    hub.requests.clear()
    assert machine.run("maker/big") == 0
    assert [request.path.count(second) for request in hub.asked("store")] == [1]  # the first part is not fetched again
    assert [model.name for model in list_models(machine.home)] == ["big-Q8_0"]
    assert machine.parts() == []


def test_file_outside_large_storage_is_not_checked(hub: FakeHub, machine: Machine) -> None:
    hub.add("maker/small", {"small-Q8_0.gguf": Q8}, large=False)
    hub.faults.append(Fault("resolve", body=Q8[:-1] + b"?", match="resolve-cache"))
    assert machine.run("maker/small") == 1
    assert "arrived damaged" in machine.err and machine.files() == {}
    assert machine.run("maker/small") == 0
    assert machine.files() == {"maker/small/small-Q8_0.gguf": Q8}


def test_projector_is_left_out_or_not_asked_for(hub: FakeHub, machine: Machine) -> None:
    hub.repos[NAME].files |= {"mmproj-F16.gguf": data("F16", 999), "mmproj-BF16.gguf": data("BF16", 999)}
    assert machine.run(NAME, "--quant", "Q4_K_M") == 0
    assert list(machine.files()) == ["maker/toy-GGUF/toy-Q4_K_M.gguf"]
    assert machine.run(NAME, "--quant", "Q4_K_M", "--mmproj") == 0
    assert machine.files()["maker/toy-GGUF/mmproj-F16.gguf"] == data("F16", 999)
    assert "taking mmproj-F16.gguf of 2 projectors" in machine.err
    assert f"-- --mmproj {machine.folder / 'mmproj-F16.gguf'}" in machine.err
    assert len(machine.files()) == 2
    assert [model.name for model in list_models(machine.home)] == ["toy-Q4_K_M"]


def test_missing_projector_is_noticed_after_the_download(hub: FakeHub, machine: Machine) -> None:
    assert machine.run(NAME, "--quant", "Q4_K_M", "--mmproj") == 1
    assert "error: maker/toy-GGUF has no mmproj file" in machine.err
    assert machine.files() == {}


def test_same_file_name_in_two_repositories_is_one_file(hub: FakeHub, machine: Machine) -> None:
    hub.add("other/toy", {"toy-Q4_K_M.gguf": Q8})
    assert machine.run(f"{NAME}:Q4_K_M") == 0
    assert machine.run("other/toy:Q4_K_M") == 0
    assert machine.files() == {"maker/toy-GGUF/toy-Q4_K_M.gguf": Q4, "other/toy/toy-Q4_K_M.gguf": Q8}
    assert f"--server {machine.home.models}/other/toy/toy-Q4_K_M.gguf" in machine.err  # the name alone is not enough


def test_incomplete_set_of_another_model_spoils_a_download(hub: FakeHub, machine: Machine) -> None:
    (machine.home.models / "other-00001-of-00002.gguf").write_bytes(b"x")
    assert machine.run(NAME, "--quant", "Q4_K_M") == 0
    assert machine.out == f"{machine.folder / 'toy-Q4_K_M.gguf'}\n"


# What goes wrong on the way


def test_dropped_connection_ends_the_download(hub: FakeHub, machine: Machine) -> None:
    hub.faults.append(Fault("store", times=2, drop_after=70_000))
    assert machine.run(NAME, "--quant", "Q8_0") == 0
    assert machine.files() == {"maker/toy-GGUF/toy-Q8_0.gguf": Q8}
    ranges = [request.range for request in hub.asked("store")]
    assert ranges == [None, "bytes=70000-299999", "bytes=140000-299999"]  # no byte is fetched twice
    assert machine.pauses == [1.0, 1.0]
    assert "the connection was lost" in machine.err and "going on at 70.0 kB in 1 s" in machine.err


def test_interrupted_download_begins_anew(hub: FakeHub, machine: Machine) -> None:
    machine.leave_part("toy-Q8_0.gguf", Q8, 120_000)
    assert machine.run(NAME, "--quant", "Q8_0") == 0
    assert machine.files() == {"maker/toy-GGUF/toy-Q8_0.gguf": Q8}
    assert [request.range for request in hub.asked("store")] == ["bytes=120000-299999"]
    assert "downloading 180.0 kB from" in machine.err and "120.0 kB arrived earlier" in machine.err


@pytest.mark.parametrize("n_bytes", [300_000, 300_001])
def test_whole_part_is_fetched_past_its_end(hub: FakeHub, machine: Machine, n_bytes: int) -> None:
    machine.leave_part("toy-Q8_0.gguf", Q8, 0)
    machine.parts()[0].write_bytes((Q8 + b"?")[:n_bytes])
    assert machine.run(NAME, "--quant", "Q8_0") == 0
    assert machine.files() == {"maker/toy-GGUF/toy-Q8_0.gguf": Q8}
    assert hub.asked("store") == []


def test_server_without_ranges_spoils_a_resumed_file(hub: FakeHub, machine: Machine) -> None:
    machine.leave_part("toy-Q8_0.gguf", Q8, 120_000)
    hub.faults.append(Fault("store", ignore_range=True))
    assert machine.run(NAME, "--quant", "Q8_0") == 0
    assert machine.files() == {"maker/toy-GGUF/toy-Q8_0.gguf": Q8}


def test_part_of_an_older_version_is_used(hub: FakeHub, machine: Machine) -> None:
    machine.leave_part("toy-Q8_0.gguf", data("older"), 120_000)
    assert machine.run(NAME, "--quant", "Q8_0") == 0
    assert machine.files() == {"maker/toy-GGUF/toy-Q8_0.gguf": Q8}  # and the outdated part is gone
    assert [request.range for request in hub.asked("store")] == [None]


def test_wrong_bytes_become_a_model(hub: FakeHub, machine: Machine) -> None:
    hub.faults.append(Fault("store", body=bytes(len(Q8))))
    assert machine.run(NAME, "--quant", "Q8_0") == 1
    assert "error: toy-Q8_0.gguf arrived damaged, and was deleted" in machine.err
    assert hashlib.sha256(Q8).hexdigest() in machine.err and hashlib.sha256(bytes(len(Q8))).hexdigest() in machine.err
    assert "hint: run again to download it anew" in machine.err
    assert machine.files() == {}
    assert machine.run(NAME, "--quant", "Q8_0") == 0


def test_damaged_part_becomes_a_model(hub: FakeHub, machine: Machine) -> None:
    machine.leave_part("toy-Q8_0.gguf", Q8, 120_000)
    machine.parts()[0].write_bytes(bytes(120_000))
    assert machine.run(NAME, "--quant", "Q8_0") == 1
    assert machine.files() == {}
    assert machine.run(NAME, "--quant", "Q8_0") == 0


@pytest.mark.parametrize("size", [299_999, 300_001])
def test_size_that_the_hub_lies_about_is_believed(hub: FakeHub, machine: Machine, size: int) -> None:
    hub.repos[NAME].sizes["toy-Q8_0.gguf"] = size
    assert machine.run(NAME, "--quant", "Q8_0") == 1
    assert f"toy-Q8_0.gguf should have {size:,} bytes, but the hub sends a file of 300,000" in machine.err
    assert list_models(machine.home) == []


def test_endless_answer_fills_the_disk(hub: FakeHub, machine: Machine) -> None:
    hub.faults.append(Fault("store", body=Q8 + bytes(5_000_000), undeclared=True))
    assert machine.run(NAME, "--quant", "Q8_0") == 1
    assert "more than 300,000 bytes" in machine.err
    assert machine.files() == {}


def test_short_answer_is_taken_for_the_file(hub: FakeHub, machine: Machine) -> None:
    hub.faults.append(Fault("store", body=Q8[:1000], undeclared=True))
    assert machine.run(NAME, "--quant", "Q8_0") == 0
    assert machine.files() == {"maker/toy-GGUF/toy-Q8_0.gguf": Q8}


def test_empty_answers_are_awaited_forever(hub: FakeHub, machine: Machine) -> None:
    hub.faults.append(Fault("store", times=1000, body=b"", undeclared=True))
    assert machine.run(NAME, "--quant", "Q8_0") == 1
    assert "the hub sends nothing more of toy-Q8_0.gguf" in machine.err
    assert machine.pauses == [1.0, 2.0, 4.0, 8.0, 16.0]


def test_expired_address_ends_the_download(hub: FakeHub, machine: Machine) -> None:
    hub.faults.append(Fault("store", status=403))
    assert machine.run(NAME, "--quant", "Q8_0") == 0
    assert len(hub.asked("resolve")) == 2  # a new address was asked for


@pytest.mark.parametrize("status", [408, 500, 502, 503])
def test_trouble_of_the_hub_for_a_moment_ends_the_download(hub: FakeHub, machine: Machine, status: int) -> None:
    hub.faults.append(Fault("resolve", status=status, times=2))
    assert machine.run(NAME, "--quant", "Q8_0") == 0
    assert f"the hub has trouble (HTTP {status})" in machine.err


def test_trouble_of_the_hub_is_endured_forever(hub: FakeHub, machine: Machine) -> None:
    machine.leave_part("toy-Q8_0.gguf", Q8, 120_000)
    hub.faults.append(Fault("resolve", status=500, times=1000))
    assert machine.run(NAME, "--quant", "Q8_0") == 1
    assert "error: the hub has trouble (HTTP 500)" in machine.err
    assert "hint: try again later; what has arrived is kept" in machine.err
    assert machine.pauses == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert [path.stat().st_size for path in machine.parts()] == [120_000]


def test_limit_of_requests_is_hammered(hub: FakeHub, machine: Machine) -> None:
    hub.faults.append(Fault("resolve", status=429, headers={"Retry-After": "7"}))
    assert machine.run(NAME, "--quant", "Q8_0") == 0
    assert machine.pauses == [7.0]
    hub.faults.append(Fault("api", status=429, headers={"RateLimit": '"api";r=0;t=55'}))
    assert machine.run(NAME, "--quant", "Q8_0") == 1
    assert "error: the hub allows no more requests for now (HTTP 429)" in machine.err
    assert "hint: wait 55 s and run again; a token (HF_TOKEN) gives more" in machine.err


def test_large_file_is_asked_for_in_one_piece(hub: FakeHub, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "SEGMENT", 130_000)
    assert machine.run(NAME, "--quant", "Q8_0") == 0
    assert machine.files() == {"maker/toy-GGUF/toy-Q8_0.gguf": Q8}
    assert [request.range for request in hub.asked("store")] == [
        "bytes=0-129999",
        "bytes=130000-259999",
        "bytes=260000-299999",
    ]
    assert machine.pauses == []


# What is there already


@pytest.mark.parametrize("content", [b"?" + Q8[1:], Q8[:100]])
def test_damaged_file_is_taken_for_complete(hub: FakeHub, machine: Machine, content: bytes) -> None:
    machine.folder.mkdir(parents=True)
    (machine.folder / "toy-Q8_0.gguf").write_bytes(content)
    assert machine.run(NAME, "--quant", "Q8_0") == 0
    assert "is not what the hub has now: it is replaced when the new one is complete" in machine.err
    assert machine.files() == {"maker/toy-GGUF/toy-Q8_0.gguf": Q8}


def test_old_version_is_gone_before_the_new_one_is_there(hub: FakeHub, machine: Machine) -> None:
    machine.folder.mkdir(parents=True)
    (machine.folder / "toy-Q8_0.gguf").write_bytes(b"old")
    hub.faults.append(Fault("resolve", status=500, times=1000))
    assert machine.run(NAME, "--quant", "Q8_0") == 1
    assert (machine.folder / "toy-Q8_0.gguf").read_bytes() == b"old"


def test_full_disk_is_noticed_at_its_end(hub: FakeHub, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=250_000))
    assert machine.run(NAME, "--quant", "Q8_0") == 1
    assert "error: 300.0 kB are missing, 250.0 kB are free on the disk of" in machine.err
    assert "hint: free 50.0 kB or take a smaller quantisation" in machine.err
    assert hub.asked("resolve") == [] and machine.files() == {}
    machine.leave_part("toy-Q8_0.gguf", Q8, 60_000)  # what is there is not counted twice
    assert machine.run(NAME, "--quant", "Q8_0") == 0


def test_disk_that_fills_up_gives_a_traceback(hub: FakeHub, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert machine.run(NAME, "--quant", "Q8_0") == 1
    assert "No space left on device" in machine.err and "it goes on where it stopped" in machine.err
    assert len(machine.parts()) == 1
    assert machine.run(NAME, "--quant", "Q8_0") == 0
    assert len(hub.asked("store")) == 1


def test_folder_that_cannot_be_written_gives_a_traceback(hub: FakeHub, machine: Machine) -> None:
    (machine.home.models / "maker").write_text("in the way")
    assert machine.run(NAME, "--quant", "Q8_0") == 1
    assert "error: cannot write" in machine.err


def test_two_downloads_write_one_file(hub: FakeHub, machine: Machine) -> None:
    machine.folder.mkdir(parents=True)
    with (machine.folder / ".download.lock").open("w") as lock:
        lock.write("4711\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert machine.run(NAME, "--quant", "Q8_0") == 1
    assert "another llama-run is downloading into" in machine.err and "(pid 4711)" in machine.err
    assert hub.asked("resolve") == []


# What is asked for


def test_missing_quantisation_lists_nothing(hub: FakeHub, machine: Machine) -> None:
    assert machine.run(NAME, "--quant", "Q5_K_M") == 1
    assert "error: maker/toy-GGUF has no Q5_K_M; it has:\n  Q4_K_M  200.0 kB\n  Q8_0    300.0 kB\n" in machine.err
    assert "hint: say which one: llama-run --download maker/toy-GGUF --quant Q4_K_M" in machine.err


def test_nearest_quantisation_is_taken_in_silence(hub: FakeHub, machine: Machine) -> None:
    assert machine.run(NAME, "--quant", "Q4_K_S") == 0
    assert "maker/toy-GGUF has no Q4_K_S; taking Q4_K_M, the nearest of its kind" in machine.err


def test_quantisation_is_guessed(hub: FakeHub, machine: Machine) -> None:
    assert machine.run(NAME) == 1
    assert "error: maker/toy-GGUF has several models:\n  Q4_K_M  200.0 kB\n  Q8_0 " in machine.err
    del hub.repos[NAME].files["toy-Q4_K_M.gguf"]
    assert machine.run(NAME) == 0  # the only one


def test_models_of_one_quantisation_cannot_be_told_apart(hub: FakeHub, machine: Machine) -> None:
    hub.add("maker/two", {"a-7b-Q8_0.gguf": Q8, "a-1b-Q8_0.gguf": Q4})
    assert machine.run("maker/two:Q8_0") == 1
    assert "has several models in Q8_0:\n  a-1b-Q8_0  200.0 kB\n  a-7b-Q8_0  300.0 kB" in machine.err
    assert "--quant a-1b-Q8_0" in machine.err
    assert machine.run("maker/two", "--quant", "a-7b-Q8_0") == 0


@pytest.mark.parametrize(("typed", "quant"), [("\n", "Q4_K_M"), ("9\n2\n", "Q8_0")])
def test_terminal_is_not_asked(
    hub: FakeHub, machine: Machine, monkeypatch: pytest.MonkeyPatch, typed: str, quant: str
) -> None:
    monkeypatch.setattr(console, "is_interactive", lambda: True)
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    assert machine.run(NAME) == 0
    assert "  1)  Q4_K_M  200.0 kB\n  2)  Q8_0    300.0 kB" in machine.err
    assert list(machine.files()) == [f"maker/toy-GGUF/toy-{quant}.gguf"]


def test_refused_question_downloads(hub: FakeHub, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "is_interactive", lambda: True)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert machine.run(NAME) == 130
    assert machine.files() == {}


def test_repository_without_models_gives_an_empty_list(hub: FakeHub, machine: Machine) -> None:
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
def test_name_from_the_hub_escapes_the_folder(hub: FakeHub, machine: Machine, path: str) -> None:
    hub.add("maker/evil", {path: Q4})
    assert machine.run("maker/evil") == 1
    assert "error: maker/evil has no GGUF model" in machine.err
    assert machine.files() == {} and hub.asked("resolve") == []


def test_checksum_from_the_hub_escapes_the_folder(hub: FakeHub, machine: Machine) -> None:
    hub.repos[NAME].checksum = "/../../../../escaped"
    assert machine.run(NAME, "--quant", "Q8_0") == 0
    assert "note: the hub tells no checksum of toy-Q8_0.gguf; only its size was compared" in machine.err
    assert machine.files() == {"maker/toy-GGUF/toy-Q8_0.gguf": Q8}


# Search


def test_search_hides_what_matters(hub: FakeHub, machine: Machine) -> None:
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


def test_choice_among_search_results_is_lost(hub: FakeHub, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("other/toy-large-GGUF", {"toy-Q8_0.gguf": Q4}, downloads=99_999)
    monkeypatch.setattr(console, "is_interactive", lambda: True)
    monkeypatch.setattr("sys.stdin", io.StringIO("2\n"))
    assert machine.run("toy", "--quant", "Q8_0") == 0
    assert machine.files() == {"maker/toy-GGUF/toy-Q8_0.gguf": Q8}


def test_search_without_results_ends_in_silence(hub: FakeHub, machine: Machine) -> None:
    assert machine.run("no such thing") == 1
    assert "error: no repository with GGUF files is called 'no such thing'" in machine.err


# Who may read what


def test_unknown_repository_is_not_explained(hub: FakeHub, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.run("maker/no_such-thing") == 1
    assert "error: there is no repository maker/no_such-thing, or it is private" in machine.err
    assert 'llama-run --download "no such thing"' in machine.err and "set HF_TOKEN" in machine.err
    monkeypatch.setenv("HF_TOKEN", GOOD_TOKEN)
    assert machine.run("maker/no_such-thing") == 1
    assert "error: there is no repository maker/no_such-thing that your token may read" in machine.err


def closed(hub: FakeHub, **settings: Any) -> Repo:
    return hub.add("maker/closed", {"closed-Q8_0.gguf": Q8}, **settings)


def test_private_repository_stays_closed(hub: FakeHub, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    closed(hub, private=True)
    assert machine.run("maker/closed") == 1 and "or it is private" in machine.err
    monkeypatch.setenv("HF_TOKEN", GOOD_TOKEN)
    assert machine.run("maker/closed") == 0


def test_gated_repository_is_not_explained(hub: FakeHub, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    closed(hub, gated=True)
    assert machine.run("maker/closed") == 1
    assert "error: maker/closed is gated" in machine.err
    assert f"agree to its terms at {hub.url}/maker/closed" in machine.err and "HF_TOKEN=hf_..." in machine.err
    monkeypatch.setenv("HF_TOKEN", POOR_TOKEN)
    assert machine.run("maker/closed") == 1
    assert "error: maker/closed is gated, and your token has no access to it" in machine.err
    monkeypatch.setenv("HF_TOKEN", GOOD_TOKEN)
    assert machine.run("maker/closed") == 0
    assert machine.pauses == []  # none of this gets better by waiting


def test_token_is_shown_to_the_store(hub: FakeHub, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", GOOD_TOKEN)
    closed(hub, gated=True)
    assert machine.run("maker/closed") == 0
    assert {request.token for request in hub.asked("api") + hub.asked("resolve")} == {GOOD_TOKEN}
    assert {request.token for request in hub.asked("store")} == {None}


def test_wrong_token_is_not_explained(hub: FakeHub, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_expired")
    assert machine.run(NAME, "--quant", "Q8_0") == 1
    assert "error: the hub refuses your token" in machine.err and "or unset HF_TOKEN" in machine.err
    assert machine.run("toy") == 1
    assert "error: the hub refuses your token" in machine.err


def test_token_that_is_none_gives_a_traceback(hub: FakeHub, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "mein Schlüssel")
    assert machine.run(NAME, "--quant", "Q8_0") == 1
    assert "error: your token has letters that no token has" in machine.err


def test_hub_that_is_closed_to_all_is_not_explained(hub: FakeHub, machine: Machine) -> None:
    hub.faults.append(Fault("api", status=401))
    assert machine.run("toy") == 1
    assert "error: this hub wants a token" in machine.err


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (403, "error: the hub does not let you read maker/toy-GGUF"),
        (400, "error: the hub refuses toy-Q8_0.gguf (HTTP 400)"),
        (410, "error: the hub refuses toy-Q8_0.gguf (HTTP 410)"),
    ],
)
def test_refusal_gives_a_traceback(hub: FakeHub, machine: Machine, status: int, expected: str) -> None:
    hub.faults.append(Fault("resolve", status=status, times=1000))
    assert machine.run(NAME, "--quant", "Q8_0") == 1
    assert expected in machine.err and machine.pauses == []


def test_file_that_vanished_gives_a_traceback(hub: FakeHub, machine: Machine) -> None:
    headers = {"X-Error-Code": "EntryNotFound"}
    hub.faults.append(Fault("resolve", status=404, headers=headers))
    assert machine.run(NAME, "--quant", "Q8_0") == 1
    assert "error: toy-Q8_0.gguf is gone from the hub" in machine.err


# No hub at all


@pytest.mark.parametrize("name", [NAME, "toy"])
def test_missing_network_is_not_explained(machine: Machine, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    assert machine.run(name) == 1
    assert "error: cannot reach http://127.0.0.1:" in machine.err and "hint: check the network" in machine.err


@pytest.mark.parametrize("body", [b"<html>Please log in to the network</html>", b"[]", b"{}", b"null", b"\xff"])
@pytest.mark.parametrize("name", [NAME, "toy"])
def test_other_server_gives_a_traceback(hub: FakeHub, machine: Machine, name: str, body: bytes) -> None:
    hub.faults.append(Fault("api", times=1000, status=200, body=body))
    assert machine.run(name) == 1
    if (name, body) == ("toy", b"[]"):
        assert "no repository with GGUF files is called 'toy'" in machine.err
    else:
        assert "does not answer like a model hub" in machine.err


def test_empty_endpoint_is_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "")
    assert Hub().url("a/b").endswith(".co/a/b")


def test_wrong_endpoint_gives_a_traceback(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "ftp://127.0.0.1/x")
    assert machine.run(NAME) == 1
    assert "error: ftp://127.0.0.1/x cannot be used" in machine.err


# What is said before


def test_model_beyond_the_memory_is_downloaded_in_silence(
    hub: FakeHub, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory._replace(total=250_000))
    assert machine.run(NAME, "--quant", "Q8_0") == 0
    warning = "warning: Q8_0 takes 300.0 kB; this machine has 250.0 kB of memory"
    assert machine.err.index(warning) < machine.err.index("downloading")
    assert machine.run(NAME, "--quant", "Q4_K_M") == 0
    assert "warning" not in machine.err


def test_slow_kernels_are_found_out_later(hub: FakeHub, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    hub.add("maker/slow", {"slow-Q4_1.gguf": Q4})
    assert machine.run("maker/slow") == 0
    assert "note: Q4_1 is slow on ARM processors" in machine.err


def test_progress_has_no_time_left(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    progress = console.Progress("a.gguf", console.BYTES, 10_000_000_000, 1_000_000_000)
    for clock[0] in (1010.0, 1030.0, 1031.0, 1055.0):
        progress.advance(500_000_000)
    assert capsys.readouterr().err.splitlines() == [
        "a.gguf: 2.00 GB of 10.00 GB, 25.0 MB/s, about 5 min 20 s left",
        "a.gguf: 3.00 GB of 10.00 GB, 33.3 MB/s, about 3 min 30 s left",
    ]
