"""Requests that wait, for files or a slot, are served in the order in which they came, and all of them."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
from cache_server import CacheServer, Serve, toy
from helpers import wait_until

from toys.corpus import TEXT

pytestmark = pytest.mark.server

LINES = TEXT.splitlines()


class Line:
    """Who came when, and who was served when."""

    def __init__(self) -> None:
        self.mutex = threading.Lock()
        self.arrived = 0
        self.waiting: dict[int, int] = {}  # by arrival: how many later ones were served first
        self.overtaken: list[int] = []

    def enter(self) -> int:
        with self.mutex:
            self.arrived += 1
            self.waiting[self.arrived] = 0
            return self.arrived

    def leave(self, number: int) -> None:
        with self.mutex:
            self.overtaken.append(self.waiting.pop(number))
            for earlier in self.waiting:
                if earlier < number:
                    self.waiting[earlier] += 1


def test_task_that_cannot_run_holds_up_nobody(serve: Serve, tmp_path: Path) -> None:
    """One slot is busy for long, and somebody waits for just that one; the other slot serves all the rest."""
    server = serve(toy("dense"), "--parallel", "2", "--ctx-size", "16384", cache=tmp_path / "kv")
    stop = threading.Event()

    def stream(**options: object) -> None:
        body = {"prompt": "Once", "n_predict": 7000, "ignore_eos": True, "stream": True} | options
        with requests.post(f"{server.url}/completion", json=body, stream=True, timeout=120) as answer:
            for _ in answer.iter_content(64):
                if stop.is_set():
                    return

    long = threading.Thread(target=stream, kwargs={"id_slot": 0})
    long.start()
    wait_until(lambda: server.get("/slots")[0]["is_processing"], 20, "the first slot is busy")
    wants_it = threading.Thread(target=stream, kwargs={"id_slot": 0, "n_predict": 1})
    wants_it.start()
    time.sleep(0.3)
    with ThreadPoolExecutor(5) as clients:
        list(clients.map(lambda n: server.complete(LINES[n], n_predict=4), range(12)))
    assert server.get("/slots")[0]["is_processing"], "the first slot was free too early to show anything"
    stop.set()
    long.join()
    wants_it.join()


@pytest.mark.parametrize("action", ["save", "restore", "erase"])
def test_who_waits_behind_an_action_on_a_slot_is_served_after_it(serve: Serve, tmp_path: Path, action: str) -> None:
    """The end of an answer wakes one of those that wait, and an action leaves the slot to the next."""
    flags = ("--parallel", "1", "--ctx-size", "8192", "--metrics", "--slot-save-path", str(tmp_path))
    server = serve(toy("dense"), *flags, cache=tmp_path / "kv")
    server.complete(LINES[0], n_predict=1)
    server.post("/slots/0?action=save", {"filename": "one"})
    with ThreadPoolExecutor(3) as clients:
        long = clients.submit(server.complete, LINES[1], n_predict=2000, ignore_eos=True)
        wait_until(lambda: server.get("/slots")[0]["is_processing"], 20, "the slot is busy")
        acted = clients.submit(server.post, f"/slots/0?action={action}", {"filename": "one"})
        wait_until(lambda: server.n_waiting() == 1, 20, "the action waits")
        behind = clients.submit(server.complete, LINES[2], n_predict=1)
        wait_until(lambda: server.n_waiting() == 2, 20, "somebody waits behind it")
        assert not long.done(), "the slot was free too early to show anything"
        assert long.result(120) and acted.result(30) and behind.result(30)


def test_nobody_is_overtaken_again_and_again(serve: Serve, tmp_path: Path) -> None:
    """Eight clients, one slot, and a RAM tier that holds next to nothing: nearly every request reads files."""
    n_clients, n_each = 8, 15
    flags = "--parallel", "1", "--ctx-size", "4096", "--cache-ssd-ram", "1M", "--cache-ssd-page-size", "32"
    server = serve(toy("dense"), *flags, cache=tmp_path / "kv")
    prompts = [server.tokens(" ".join(LINES[n : n + 9] + LINES[:n])) for n in range(16)]
    for prompt in prompts:
        server.complete(prompt, n_predict=1)
    line = Line()

    def ask_again_and_again(server: CacheServer, client: int) -> None:
        for n in range(n_each):
            number = line.enter()
            server.complete(prompts[(client * 5 + n * 3) % len(prompts)], n_predict=24)
            line.leave(number)
            time.sleep(0.001)

    clients = [threading.Thread(target=ask_again_and_again, args=(server, n)) for n in range(n_clients)]
    for client in clients:
        client.start()
    for client in clients:
        client.join(120)
    assert len(line.overtaken) == n_clients * n_each
    # Each other client may get in between once or twice: while a request is read for, and where two arrive at once.
    assert max(line.overtaken) <= 2 * n_clients, sorted(line.overtaken)[-20:]
