"""Measures what listeners cost: python -m benchmarks.listeners MODEL.gguf

Clients ask as fast as they are answered, in rounds without and with listeners on /cache/events, in alternation; one
listener reads nothing. Shown are the tokens answered in a second of each round, the processor time of the server for a
token, which a busy machine disturbs less, and its memory.
"""

from __future__ import annotations

import argparse
import selectors
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import requests

from benchmarks import interrupt
from benchmarks.plan_facts import Served
from pyrun.home import find_home

READ_BYTES = 65536


@dataclass
class Round:
    tokens_per_s: float
    cpu_ms_per_token: float
    rss: int


@contextmanager
def listening(url: str, n: int) -> Iterator[None]:
    """n listeners, of which the first never reads."""
    host, port = url.removeprefix("http://").split(":")
    opened = []
    for _ in range(n):
        connection = socket.create_connection((host, int(port)))
        connection.sendall(f"GET /cache/events HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        opened.append(connection)
    over = threading.Event()
    reader = threading.Thread(target=_read, args=(opened[1:], over))
    reader.start()
    try:
        yield
    finally:
        over.set()
        reader.join()
        for connection in opened:
            connection.close()


def _read(connections: list[socket.socket], over: threading.Event) -> None:
    with selectors.DefaultSelector() as waiting:
        for connection in connections:
            waiting.register(connection, selectors.EVENT_READ)
        while not over.is_set():
            for key, _ in waiting.select(timeout=0.5):
                key.fileobj.recv(READ_BYTES)  # type: ignore[union-attr]


def rush(server: Served, clients: int, seconds: float) -> Round:
    process = psutil.Process(server.process.pid)
    until = time.monotonic() + seconds
    answered = [0] * clients

    def ask(client: int) -> None:
        body = {"prompt": f"Client {client} asks about rivers.", "n_predict": 32, "ignore_eos": True}
        while time.monotonic() < until:
            answer = requests.post(f"{server.url}/completion", json=body, timeout=600).json()
            answered[client] += int(answer["tokens_predicted"])

    before, began = _cpu_seconds(process), time.monotonic()
    threads = [threading.Thread(target=ask, args=(client,)) for client in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took, used = time.monotonic() - began, _cpu_seconds(process) - before
    return Round(sum(answered) / took, 1000 * used / sum(answered), process.memory_info().rss)


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def main() -> None:
    interrupt.heed()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--server", type=Path, default=find_home().server_binary("cpu"))
    parser.add_argument("--listeners", type=int, default=50)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10)
    options = parser.parse_args()
    flags = ["--parallel", str(options.clients), "--ctx-size", "8192", "--threads", "1"]
    without, beside = [], []
    with tempfile.TemporaryDirectory() as folder:
        server = Served(options.server, options.model, Path(folder) / "kv", flags)
        rush(server, options.clients, options.seconds)
        for _ in range(options.rounds):
            without.append(rush(server, options.clients, options.seconds))
            with listening(server.url, options.listeners):
                beside.append(rush(server, options.clients, options.seconds))
            for name, one in (("without", without[-1]), (f"with {options.listeners}", beside[-1])):
                numbers = f"{one.tokens_per_s:8.1f} tokens/s, {one.cpu_ms_per_token:7.3f} ms/token, {one.rss >> 20} MiB"
                print(f"{name:>9} {numbers}", flush=True)
        server.stop()
    pairs = list(zip(without, beside, strict=True))
    speed = statistics.median(b.tokens_per_s / a.tokens_per_s for a, b in pairs)
    work = statistics.median(b.cpu_ms_per_token / a.cpu_ms_per_token for a, b in pairs)
    grown = max(b.rss for b in beside) - min(a.rss for a in without)
    print(f"throughput {speed:.3f} of that without, processor time a token {work:.3f}, memory +{grown / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
