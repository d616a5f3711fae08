"""`llama-run --download`: what arrives, and what becomes of what is there already."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil

import pytest
from downloads import NAME, Q4, Q8, Machine, data
from fakes.hub import FakeHub, Fault

from pyrun.models.download import TRIES
from pyrun.models.find import list_models


def test_download_is_what_the_hub_has(hub: FakeHub, machine: Machine) -> None:
    assert machine.run(NAME, "--quant", "Q4_K_M") == 0
    assert machine.files() == {"maker/toy-GGUF/toy-Q4_K_M.gguf": Q4}
    assert machine.out == f"{machine.folder / 'toy-Q4_K_M.gguf'}\n"
    assert "downloading 200.0 kB from maker/toy-GGUF" in machine.err
    assert "1 file is complete and checked" in machine.err
    assert "serve it: llama-run --server toy-Q4_K_M\n" in machine.err
    assert [model.name for model in list_models(machine.home)] == ["toy-Q4_K_M"]


def test_second_run_downloads_nothing(hub: FakeHub, machine: Machine) -> None:
    machine.run(f"{NAME}:Q4_K_M")
    before = len(hub.asked("resolve"))
    assert machine.run(f"{NAME}:Q4_K_M") == 0
    assert "already in" in machine.err and "nothing to download" in machine.err
    assert machine.out == f"{machine.folder / 'toy-Q4_K_M.gguf'}\n"
    assert len(hub.asked("resolve")) == before


def test_split_set_is_complete(hub: FakeHub, machine: Machine) -> None:
    parts = {f"Q8_0/big-Q8_0-0000{n}-of-00003.gguf": data(f"part {n}") for n in (1, 2, 3)}
    hub.add("maker/big", {**parts, "Q4_0/big-Q4_0.gguf": Q4})
    assert machine.run("maker/big", "--quant", "Q8_0") == 0
    assert machine.files() == {f"maker/big/{path}": content for path, content in parts.items()}
    assert [(model.name, model.size) for model in list_models(machine.home)] == [("big-Q8_0", 900_000)]
    assert machine.out.endswith("big-Q8_0-00001-of-00003.gguf\n")
    assert "serve it: llama-run --server big-Q8_0\n" in machine.err


def test_unfinished_split_set_is_not_listed(hub: FakeHub, machine: Machine) -> None:
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


def test_file_outside_large_storage_is_checked(hub: FakeHub, machine: Machine) -> None:
    hub.add("maker/small", {"small-Q8_0.gguf": Q8}, large=False)
    hub.faults.append(Fault("resolve", body=Q8[:-1] + b"?", match="resolve-cache"))
    assert machine.run("maker/small") == 1
    assert "arrived damaged" in machine.err and machine.files() == {}
    assert machine.run("maker/small") == 0
    assert machine.files() == {"maker/small/small-Q8_0.gguf": Q8}


def test_projector_arrives_only_when_asked_for(hub: FakeHub, machine: Machine) -> None:
    hub.repos[NAME].files |= {"mmproj-F16.gguf": data("F16", 999), "mmproj-BF16.gguf": data("BF16", 999)}
    assert machine.run(NAME, "--quant", "Q4_K_M") == 0
    assert list(machine.files()) == ["maker/toy-GGUF/toy-Q4_K_M.gguf"]
    assert machine.run(NAME, "--quant", "Q4_K_M", "--mmproj") == 0
    assert machine.files()["maker/toy-GGUF/mmproj-F16.gguf"] == data("F16", 999)
    assert "taking mmproj-F16.gguf of 2 projectors" in machine.err
    assert f"-- --mmproj {machine.folder / 'mmproj-F16.gguf'}" in machine.err
    assert len(machine.files()) == 2
    assert [model.name for model in list_models(machine.home)] == ["toy-Q4_K_M"]


def test_missing_projector_is_noticed_before_the_download(hub: FakeHub, machine: Machine) -> None:
    assert machine.run(NAME, "--quant", "Q4_K_M", "--mmproj") == 1
    assert "error: maker/toy-GGUF has no mmproj file" in machine.err
    assert machine.files() == {}


def test_same_file_name_in_two_repositories_is_two_files(hub: FakeHub, machine: Machine) -> None:
    hub.add("other/toy", {"toy-Q4_K_M.gguf": Q8})
    assert machine.run(f"{NAME}:Q4_K_M") == 0
    assert machine.run("other/toy:Q4_K_M") == 0
    assert machine.files() == {"maker/toy-GGUF/toy-Q4_K_M.gguf": Q4, "other/toy/toy-Q4_K_M.gguf": Q8}
    assert f"--server {machine.home.models}/other/toy/toy-Q4_K_M.gguf" in machine.err  # the name alone is not enough


def test_incomplete_set_of_another_model_spoils_no_download(hub: FakeHub, machine: Machine) -> None:
    (machine.home.models / "other-00001-of-00002.gguf").write_bytes(b"x")
    assert machine.run(NAME, "--quant", "Q4_K_M") == 0
    assert machine.out == f"{machine.folder / 'toy-Q4_K_M.gguf'}\n"


@pytest.mark.parametrize("content", [b"?" + Q8[1:], Q8[:100]])
def test_damaged_file_is_not_taken_for_complete(hub: FakeHub, machine: Machine, content: bytes) -> None:
    machine.folder.mkdir(parents=True)
    (machine.folder / "toy-Q8_0.gguf").write_bytes(content)
    assert machine.run(NAME, "--quant", "Q8_0") == 0
    assert "is not what the hub has now: it is replaced when the new one is complete" in machine.err
    assert machine.files() == {"maker/toy-GGUF/toy-Q8_0.gguf": Q8}


def test_old_version_stays_until_the_new_one_is_there(hub: FakeHub, machine: Machine) -> None:
    machine.folder.mkdir(parents=True)
    (machine.folder / "toy-Q8_0.gguf").write_bytes(b"old")
    hub.faults.append(Fault("resolve", status=500, times=1000))
    assert machine.run(NAME, "--quant", "Q8_0") == 1
    assert (machine.folder / "toy-Q8_0.gguf").read_bytes() == b"old"


def test_full_disk_is_noticed_at_the_start(hub: FakeHub, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=250_000))
    assert machine.run(NAME, "--quant", "Q8_0") == 1
    assert "error: 300.0 kB are missing, 250.0 kB are free on the disk of" in machine.err
    assert "hint: free 50.0 kB or take a smaller quantisation" in machine.err
    assert hub.asked("resolve") == [] and machine.files() == {}
    machine.leave_part("toy-Q8_0.gguf", Q8, 60_000)  # what is there is not counted twice
    assert machine.run(NAME, "--quant", "Q8_0") == 0


def test_disk_that_fills_up_is_an_error(hub: FakeHub, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert machine.run(NAME, "--quant", "Q8_0") == 1
    assert "No space left on device" in machine.err and "it goes on where it stopped" in machine.err
    assert len(machine.parts()) == 1
    assert machine.run(NAME, "--quant", "Q8_0") == 0
    assert len(hub.asked("store")) == 1


def test_folder_that_cannot_be_written_is_an_error(hub: FakeHub, machine: Machine) -> None:
    (machine.home.models / "maker").write_text("in the way")
    assert machine.run(NAME, "--quant", "Q8_0") == 1
    assert "error: cannot write" in machine.err


def test_two_downloads_do_not_write_one_file(hub: FakeHub, machine: Machine) -> None:
    machine.folder.mkdir(parents=True)
    with (machine.folder / ".download.lock").open("w") as lock:
        lock.write("4711\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert machine.run(NAME, "--quant", "Q8_0") == 1
    assert "another llama-run is downloading into" in machine.err and "(pid 4711)" in machine.err
    assert hub.asked("resolve") == []
