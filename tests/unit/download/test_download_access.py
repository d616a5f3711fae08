"""`llama-run --download`: who may read what, and no hub at all."""

from __future__ import annotations

from typing import Any

import pytest
from downloads import NAME, Q8, Machine
from fakes.hub import GOOD_TOKEN, POOR_TOKEN, FakeHub, Fault, Repo
from helpers import free_port

from pyrun.models.hub import Hub


def test_unknown_repository_is_explained(hub: FakeHub, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.run("maker/no_such-thing") == 1
    assert "error: there is no repository maker/no_such-thing, or it is private" in machine.err
    assert 'llama-run --download "no such thing"' in machine.err and "set HF_TOKEN" in machine.err
    monkeypatch.setenv("HF_TOKEN", GOOD_TOKEN)
    assert machine.run("maker/no_such-thing") == 1
    assert "error: there is no repository maker/no_such-thing that your token may read" in machine.err


def closed(hub: FakeHub, **settings: Any) -> Repo:
    return hub.add("maker/closed", {"closed-Q8_0.gguf": Q8}, **settings)


def test_private_repository_opens_with_a_token(hub: FakeHub, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    closed(hub, private=True)
    assert machine.run("maker/closed") == 1 and "or it is private" in machine.err
    monkeypatch.setenv("HF_TOKEN", GOOD_TOKEN)
    assert machine.run("maker/closed") == 0


def test_gated_repository_is_explained(hub: FakeHub, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_token_is_not_shown_to_the_store(hub: FakeHub, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", GOOD_TOKEN)
    closed(hub, gated=True)
    assert machine.run("maker/closed") == 0
    assert {request.token for request in hub.asked("api") + hub.asked("resolve")} == {GOOD_TOKEN}
    assert {request.token for request in hub.asked("store")} == {None}


def test_wrong_token_is_explained(hub: FakeHub, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_expired")
    assert machine.run(NAME, "--quant", "Q8_0") == 1
    assert "error: the hub refuses your token" in machine.err and "or unset HF_TOKEN" in machine.err
    assert machine.run("toy") == 1
    assert "error: the hub refuses your token" in machine.err


def test_token_that_is_none_is_an_error(hub: FakeHub, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "mein Schlüssel")
    assert machine.run(NAME, "--quant", "Q8_0") == 1
    assert "error: your token has letters that no token has" in machine.err


def test_hub_that_is_closed_to_all_is_explained(hub: FakeHub, machine: Machine) -> None:
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
def test_refusal_is_an_error(hub: FakeHub, machine: Machine, status: int, expected: str) -> None:
    hub.faults.append(Fault("resolve", status=status, times=1000))
    assert machine.run(NAME, "--quant", "Q8_0") == 1
    assert expected in machine.err and machine.pauses == []


def test_file_that_vanished_is_an_error(hub: FakeHub, machine: Machine) -> None:
    headers = {"X-Error-Code": "EntryNotFound"}
    hub.faults.append(Fault("resolve", status=404, headers=headers))
    assert machine.run(NAME, "--quant", "Q8_0") == 1
    assert "error: toy-Q8_0.gguf is gone from the hub" in machine.err


@pytest.mark.parametrize("name", [NAME, "toy"])
def test_missing_network_is_explained(machine: Machine, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    assert machine.run(name) == 1
    assert "error: cannot reach http://127.0.0.1:" in machine.err and "hint: check the network" in machine.err


@pytest.mark.parametrize("body", [b"<html>Please log in to the network</html>", b"[]", b"{}", b"null", b"\xff"])
@pytest.mark.parametrize("name", [NAME, "toy"])
def test_other_server_is_an_error(hub: FakeHub, machine: Machine, name: str, body: bytes) -> None:
    hub.faults.append(Fault("api", times=1000, status=200, body=body))
    assert machine.run(name) == 1
    if (name, body) == ("toy", b"[]"):
        assert "no repository with GGUF files is called 'toy'" in machine.err
    else:
        assert "does not answer like a model hub" in machine.err


def test_empty_endpoint_is_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "")
    assert Hub().url("a/b").endswith(".co/a/b")


def test_wrong_endpoint_is_an_error(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "ftp://127.0.0.1/x")
    assert machine.run(NAME) == 1
    assert "error: ftp://127.0.0.1/x cannot be used" in machine.err
