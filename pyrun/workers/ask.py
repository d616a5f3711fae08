"""Asks a worker what it has: the first words of llama.cpp's own protocol, before a server begins to use it.

A worker serves one server at a time, and lets others wait without a word: one that does not answer is busy.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyrun.errors import UserError
from pyrun.workers.endpoint import Endpoint

PROTOCOL = 7  # the major version, as ggml-rpc.h has it
HELLO, DEVICE_COUNT, DEVICE_MEMORY = 14, 15, 11  # of its commands
CAPABILITIES = bytes(24)  # none but TCP
ANSWER_SECONDS = 5.0
MOST_DEVICES = 64

SIZE = struct.Struct("<Q")


class WorkerError(Exception):
    """Says in a few words why a worker cannot be used now."""


@dataclass(frozen=True)
class Worker:
    endpoint: Endpoint
    memory: tuple[int, ...]  # bytes that are free, of each device


def ask_worker(endpoint: Endpoint, seconds: float = ANSWER_SECONDS) -> Worker:
    """Raises WorkerError where it cannot be used."""
    with _explained(), socket.create_connection((endpoint.host, endpoint.port), timeout=seconds) as connection:
        version = _ask(connection, HELLO, CAPABILITIES, 4 + len(CAPABILITIES))
        if version[0] != PROTOCOL:
            raise WorkerError(f"speaks version {version[0]} of the protocol, and this llama-run version {PROTOCOL}")
        (count,) = struct.unpack("<I", _ask(connection, DEVICE_COUNT, b"", 4))
        if not 1 <= count <= MOST_DEVICES:
            raise WorkerError(f"says that it has {count} devices")
        answers = [_ask(connection, DEVICE_MEMORY, struct.pack("<I", device), 16) for device in range(count)]
        return Worker(endpoint, tuple(struct.unpack("<QQ", answer)[0] for answer in answers))


def ask_workers(endpoints: Sequence[Endpoint]) -> tuple[Worker, ...]:
    """All of them, or an error that says which one cannot be used."""
    found = []
    for endpoint in endpoints:
        try:
            found.append(ask_worker(endpoint))
        except WorkerError as error:
            raise UserError(
                f"the worker at {endpoint} {error}",
                f"start it there: llama-run worker --host {endpoint.host} --port {endpoint.port}",
            ) from error
    return tuple(found)


def missing_worker(endpoints: Sequence[Endpoint]) -> str:
    """Says which one cannot be used yet, and why; empty: all can."""
    for endpoint in endpoints:
        try:
            ask_worker(endpoint)
        except WorkerError as error:
            return f"the worker at {endpoint}, which {error}"
    return ""


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except ConnectionRefusedError:
        raise WorkerError("is not there: the connection is refused") from None
    except TimeoutError:
        raise WorkerError("does not answer: it serves another server, or its machine is not there") from None
    except OSError as error:
        raise WorkerError(f"cannot be reached: {error.strerror or error}") from None


def _ask(connection: socket.socket, command: int, question: bytes, size: int) -> bytes:
    connection.sendall(bytes([command]) + SIZE.pack(len(question)) + question)
    (said,) = SIZE.unpack(_read(connection, SIZE.size))
    if said != size:
        raise WorkerError("answers as no worker of this version does")
    return _read(connection, size)


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise WorkerError("ends the connection: it is none, or one of another version")
        data += part
    return data
