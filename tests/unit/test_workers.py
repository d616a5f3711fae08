"""Addresses of workers, their first words, and the memory that they lend."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from helpers import ROOT, free_port

from pyrun.cli.main import cli
from pyrun.errors import UserError
from pyrun.machine.describe import GIB
from pyrun.models.fit import Memory, with_workers
from pyrun.server.command import ServerSettings, server_command
from pyrun.workers.ask import PROTOCOL, WorkerError, ask_worker, ask_workers, missing_worker
from pyrun.workers.endpoint import DEFAULT_PORT, Endpoint, check_private, read_workers


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.2", "10.1.2.3", "172.20.0.1", "192.168.1.5", "169.254.1.2", "100.64.0.1"]
)
def test_private_addresses_are_allowed(host: str) -> None:
    check_private(host)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "8.8.8.8", "172.32.0.1", "192.169.0.1", "::1", "::", "fe80::1", "localhost", "box.lan", ""]
)
def test_other_addresses_are_refused(host: str) -> None:
    with pytest.raises(UserError, match="only loopback and private IPv4 addresses"):
        check_private(host)


def test_workers_are_read_with_and_without_port() -> None:
    assert read_workers("10.0.0.1:1234, 10.0.0.2") == (Endpoint("10.0.0.1", 1234), Endpoint("10.0.0.2", DEFAULT_PORT))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names none"),
        ("10.0.0.1:x", "no worker's address"),
        ("10.0.0.1:0", "no worker's address"),
        ("10.0.0.1:70000", "no worker's address"),
        ("10.0.0.1,10.0.0.1", "twice"),
        ("1.2.3.4:50052", "only loopback and private"),
    ],
)
def test_wrong_workers_are_explained(text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        read_workers(text)


def test_worker_does_not_listen_on_an_open_address() -> None:
    result = CliRunner().invoke(cli, ["worker", "--host", "0.0.0.0", "--no-build"])
    assert isinstance(result.exception, UserError) and "only loopback and private" in result.exception.message


def test_workers_do_not_go_with_all() -> None:
    result = CliRunner().invoke(cli, ["--server", "--all", "--workers", "127.0.0.1"])
    assert result.exit_code == 2 and "--workers are for one model" in result.output


def test_protocol_is_that_of_the_pinned_source() -> None:
    header = ROOT / "llama.cpp" / "source" / "ggml" / "include" / "ggml-rpc.h"
    if not header.exists():
        pytest.skip("there is no source tree")
    assert f"#define RPC_PROTO_MAJOR_VERSION    {PROTOCOL}\n" in header.read_text()


Answer = Callable[[socket.socket], object]


@pytest.fixture
def listen() -> Iterator[Callable[[Answer], Endpoint]]:
    """Something that listens where a worker should, and answers one connection as it is told."""
    opened: list[socket.socket] = []

    def start(answer: Answer) -> Endpoint:
        server = socket.create_server(("127.0.0.1", 0))
        opened.append(server)

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                answer(connection)

        threading.Thread(target=serve, daemon=True).start()
        return Endpoint("127.0.0.1", server.getsockname()[1])

    yield start
    for server in opened:
        server.close()


def hello(version: int) -> bytes:
    return struct.pack("<Q", 28) + bytes([version, 0, 0, 0]) + bytes(24)


def test_devices_and_their_memory_are_told(listen: Callable[[Answer], Endpoint]) -> None:
    def answer(connection: socket.socket) -> None:
        for reply in (hello(PROTOCOL), struct.pack("<QI", 4, 2), *(struct.pack("<QQQ", 16, n, 99) for n in (5, 7))):
            connection.recv(100)
            connection.sendall(reply)

    endpoint = listen(answer)
    assert ask_worker(endpoint).memory == (5, 7)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (hello(PROTOCOL + 1), f"speaks version {PROTOCOL + 1} of the protocol"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "answers as no worker"),
        (b"", "ends the connection"),
        (hello(PROTOCOL) + struct.pack("<QI", 4, 0), "0 devices"),
    ],
)
def test_what_is_no_worker_is_told_from_one(listen: Callable[[Answer], Endpoint], reply: bytes, said: str) -> None:
    def answer(connection: socket.socket) -> None:
        connection.recv(100)
        connection.sendall(reply)

    endpoint = listen(answer)
    with pytest.raises(WorkerError, match=said):
        ask_worker(endpoint)


def test_busy_worker_is_told_from_one_that_is_not_there(listen: Callable[[Answer], Endpoint]) -> None:
    waits = threading.Event()
    endpoint = listen(lambda connection: waits.wait(10))
    with pytest.raises(WorkerError, match="serves another server"):
        ask_worker(endpoint, 0.2)
    waits.set()
    nobody = Endpoint("127.0.0.1", free_port())
    assert missing_worker([nobody]) == f"the worker at {nobody}, which is not there: the connection is refused"
    with pytest.raises(UserError, match="connection is refused") as raised:
        ask_workers([nobody])
    assert raised.value.hint == f"start it there: llama-run worker --host 127.0.0.1 --port {nobody.port}"


@pytest.mark.parametrize("extra", [(), ("--cache-ram", "100")])
def test_upstream_s_cache_is_off_with_workers_unless_it_is_asked_for(extra: tuple[str, ...]) -> None:
    settings = ServerSettings(Path("server"), Path("model"), workers=("127.0.0.1:1", "127.0.0.2:2"), extra=extra)
    command = server_command(settings)
    assert command[command.index("--rpc") + 1] == "127.0.0.1:1,127.0.0.2:2"
    assert command.count("--cache-ram") == 1 and command[command.index("--cache-ram") + 1] == (extra or (0, "0"))[1]


def test_memory_of_workers_counts_like_a_card_s_less_what_their_system_needs() -> None:
    here = Memory(0, 8 * GIB, 8 * GIB, "", "8.0 GiB of RAM")
    both = with_workers(here, [16 * GIB, 4 * GIB])
    assert both.gpu == 14 * GIB + 3 * GIB and both.both == 8 * GIB + both.gpu and both.ram == here.ram
    assert both.gpu_text == "17.0 GiB of workers"
