"""`llama-run --download`: what goes wrong on the way."""

from __future__ import annotations

import hashlib

import pytest
from downloads import NAME, Q8, Machine, data
from fakes.hub import FakeHub, Fault

from pyrun.models import download
from pyrun.models.find import list_models


def test_dropped_connection_does_not_end_the_download(hub: FakeHub, machine: Machine) -> None:
    hub.faults.append(Fault("store", times=2, drop_after=70_000))
    assert machine.run(NAME, "--quant", "Q8_0") == 0
    assert machine.files() == {"maker/toy-GGUF/toy-Q8_0.gguf": Q8}
    ranges = [request.range for request in hub.asked("store")]
    assert ranges == [None, "bytes=70000-299999", "bytes=140000-299999"]  # no byte is fetched twice
    assert machine.pauses == [1.0, 1.0]
    assert "the connection was lost" in machine.err and "going on at 70.0 kB in 1 s" in machine.err


def test_interrupted_download_goes_on(hub: FakeHub, machine: Machine) -> None:
    machine.leave_part("toy-Q8_0.gguf", Q8, 120_000)
    assert machine.run(NAME, "--quant", "Q8_0") == 0
    assert machine.files() == {"maker/toy-GGUF/toy-Q8_0.gguf": Q8}
    assert [request.range for request in hub.asked("store")] == ["bytes=120000-299999"]
    assert "downloading 180.0 kB from" in machine.err and "120.0 kB arrived earlier" in machine.err


@pytest.mark.parametrize("n_bytes", [300_000, 300_001])
def test_whole_part_is_not_fetched_past_its_end(hub: FakeHub, machine: Machine, n_bytes: int) -> None:
    machine.leave_part("toy-Q8_0.gguf", Q8, 0)
    machine.parts()[0].write_bytes((Q8 + b"?")[:n_bytes])
    assert machine.run(NAME, "--quant", "Q8_0") == 0
    assert machine.files() == {"maker/toy-GGUF/toy-Q8_0.gguf": Q8}
    assert hub.asked("store") == []


def test_server_without_ranges_spoils_no_resumed_file(hub: FakeHub, machine: Machine) -> None:
    machine.leave_part("toy-Q8_0.gguf", Q8, 120_000)
    hub.faults.append(Fault("store", ignore_range=True))
    assert machine.run(NAME, "--quant", "Q8_0") == 0
    assert machine.files() == {"maker/toy-GGUF/toy-Q8_0.gguf": Q8}


def test_part_of_an_older_version_is_not_used(hub: FakeHub, machine: Machine) -> None:
    machine.leave_part("toy-Q8_0.gguf", data("older"), 120_000)
    assert machine.run(NAME, "--quant", "Q8_0") == 0
    assert machine.files() == {"maker/toy-GGUF/toy-Q8_0.gguf": Q8}  # and the outdated part is gone
    assert [request.range for request in hub.asked("store")] == [None]


def test_wrong_bytes_become_no_model(hub: FakeHub, machine: Machine) -> None:
    hub.faults.append(Fault("store", body=bytes(len(Q8))))
    assert machine.run(NAME, "--quant", "Q8_0") == 1
    assert "error: toy-Q8_0.gguf arrived damaged, and was deleted" in machine.err
    assert hashlib.sha256(Q8).hexdigest() in machine.err and hashlib.sha256(bytes(len(Q8))).hexdigest() in machine.err
    assert "hint: run again to download it anew" in machine.err
    assert machine.files() == {}
    assert machine.run(NAME, "--quant", "Q8_0") == 0


def test_damaged_part_becomes_no_model(hub: FakeHub, machine: Machine) -> None:
    machine.leave_part("toy-Q8_0.gguf", Q8, 120_000)
    machine.parts()[0].write_bytes(bytes(120_000))
    assert machine.run(NAME, "--quant", "Q8_0") == 1
    assert machine.files() == {}
    assert machine.run(NAME, "--quant", "Q8_0") == 0


@pytest.mark.parametrize("size", [299_999, 300_001])
def test_size_that_the_hub_lies_about_is_not_believed(hub: FakeHub, machine: Machine, size: int) -> None:
    hub.repos[NAME].sizes["toy-Q8_0.gguf"] = size
    assert machine.run(NAME, "--quant", "Q8_0") == 1
    assert f"toy-Q8_0.gguf should have {size:,} bytes, but the hub sends a file of 300,000" in machine.err
    assert list_models(machine.home) == []


def test_endless_answer_does_not_fill_the_disk(hub: FakeHub, machine: Machine) -> None:
    hub.faults.append(Fault("store", body=Q8 + bytes(5_000_000), undeclared=True))
    assert machine.run(NAME, "--quant", "Q8_0") == 1
    assert "more than 300,000 bytes" in machine.err
    assert machine.files() == {}


def test_short_answer_is_not_taken_for_the_file(hub: FakeHub, machine: Machine) -> None:
    hub.faults.append(Fault("store", body=Q8[:1000], undeclared=True))
    assert machine.run(NAME, "--quant", "Q8_0") == 0
    assert machine.files() == {"maker/toy-GGUF/toy-Q8_0.gguf": Q8}


def test_empty_answers_are_not_awaited_forever(hub: FakeHub, machine: Machine) -> None:
    hub.faults.append(Fault("store", times=1000, body=b"", undeclared=True))
    assert machine.run(NAME, "--quant", "Q8_0") == 1
    assert "the hub sends nothing more of toy-Q8_0.gguf" in machine.err
    assert machine.pauses == [1.0, 2.0, 4.0, 8.0, 16.0]


def test_expired_address_does_not_end_the_download(hub: FakeHub, machine: Machine) -> None:
    hub.faults.append(Fault("store", status=403))
    assert machine.run(NAME, "--quant", "Q8_0") == 0
    assert len(hub.asked("resolve")) == 2  # a new address was asked for


@pytest.mark.parametrize("status", [408, 500, 502, 503])
def test_trouble_of_the_hub_for_a_moment_is_endured(hub: FakeHub, machine: Machine, status: int) -> None:
    hub.faults.append(Fault("resolve", status=status, times=2))
    assert machine.run(NAME, "--quant", "Q8_0") == 0
    assert f"the hub has trouble (HTTP {status})" in machine.err


def test_trouble_of_the_hub_is_not_endured_forever(hub: FakeHub, machine: Machine) -> None:
    machine.leave_part("toy-Q8_0.gguf", Q8, 120_000)
    hub.faults.append(Fault("resolve", status=500, times=1000))
    assert machine.run(NAME, "--quant", "Q8_0") == 1
    assert "error: the hub has trouble (HTTP 500)" in machine.err
    assert "hint: try again later; what has arrived is kept" in machine.err
    assert machine.pauses == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert [path.stat().st_size for path in machine.parts()] == [120_000]


def test_limit_of_requests_is_respected(hub: FakeHub, machine: Machine) -> None:
    hub.faults.append(Fault("resolve", status=429, headers={"Retry-After": "7"}))
    assert machine.run(NAME, "--quant", "Q8_0") == 0
    assert machine.pauses == [7.0]
    hub.faults.append(Fault("api", status=429, headers={"RateLimit": '"api";r=0;t=55'}))
    assert machine.run(NAME, "--quant", "Q8_0") == 1
    assert "error: the hub allows no more requests for now (HTTP 429)" in machine.err
    assert "hint: wait 55 s and run again; a token (HF_TOKEN) gives more" in machine.err


def test_large_file_is_asked_for_in_pieces(hub: FakeHub, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "SEGMENT", 130_000)
    assert machine.run(NAME, "--quant", "Q8_0") == 0
    assert machine.files() == {"maker/toy-GGUF/toy-Q8_0.gguf": Q8}
    assert [request.range for request in hub.asked("store")] == [
        "bytes=0-129999",
        "bytes=130000-259999",
        "bytes=260000-299999",
    ]
    assert machine.pauses == []
