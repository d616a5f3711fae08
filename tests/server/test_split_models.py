"""A model over several machines: what is kept of its state, and what happens when one of them dies.

Two workers hold the layers between them; the restart matrix runs on them as well, with LLAMA_RUN_TEST_WORKERS=2.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
from backend import PATIENCE
from cache_server import CacheServer, Serve, Tokens, smollm2, toy
from helpers import wait_until
from server_fixtures import StartServer
from worker_fixtures import WorkerProcess, rpc_flags

from toys.corpus import TEXT

pytestmark = pytest.mark.server

FLAGS = "--parallel", "4", "--ctx-size", "8192", "--cache-ssd-page-size", "64", "--cache-ssd-settle", "0"


def ask_at_once(server: CacheServer, prompts: list[Tokens]) -> None:
    """Each in a slot of its own, all at the same time."""
    with ThreadPoolExecutor(len(prompts)) as pool:
        asked = [pool.submit(server.complete, prompt, id_slot=slot) for slot, prompt in enumerate(prompts)]
    for one in asked:
        one.result()


@pytest.mark.parametrize("kind", ["dense", "hybrid-moe", "swa-gemma3", "uncut"])
def test_state_of_a_split_model_outlives_the_server(
    serve: Serve, kv: Path, workers: list[WorkerProcess], kind: str
) -> None:
    server = serve(toy(kind), *FLAGS, *rpc_flags(workers), cache=kv)
    tokens = server.tokens(TEXT)
    prompts = [tokens[start : start + 300] for start in range(0, 400, 100)]
    ask_at_once(server, prompts)  # several slots are saved while others are evaluated
    first = [server.complete([*prompt, *tokens[7:9]]) for prompt in prompts]
    assert server.cache()["takes_state"] == "beside"
    server.stop()

    server = serve(toy(kind), *FLAGS, *rpc_flags(workers), cache=kv)
    for prompt, before in zip(prompts, first, strict=True):
        again = server.complete([*prompt, *tokens[7:9]])
        assert again.source == "cold" and again.reused >= len(prompt) - 4, again.timings
        assert again.text == before.text
    server.stop()


def test_layers_lie_on_the_workers(serve: Serve, workers: list[WorkerProcess]) -> None:
    server = serve(toy("dense"), *rpc_flags(workers), "--log-verbosity", "4")
    for worker in workers:
        assert f"[{worker.endpoint}] model buffer size" in server.said()
        assert f"[{worker.endpoint}] KV buffer size" in server.said()


def test_lost_worker_ends_requests_and_the_server_starts_again_when_it_is_back(
    start_server: StartServer, workers: list[WorkerProcess]
) -> None:
    named = ",".join(str(worker.endpoint) for worker in workers)
    flags = (
        "--parallel",
        "2",
        "--ctx-size",
        "8192",
        "-ub",
        "64",
        "--cache-ssd-settle",
        "0",
        "--cache-ssd-page-size",
        "32",
    )
    server = start_server(smollm2(), "--workers", named, "--", *flags, "--threads", "1")
    short = {"prompt": TEXT[:600], "n_predict": 4, "temperature": 0}
    before = server.post("/completion", short).json()
    server.post("/cache/flush", {})

    told: list[requests.Response] = []
    long = {"prompt": TEXT[1000:9000], "n_predict": 4000, "ignore_eos": True, "stream": False}
    client = threading.Thread(target=lambda: told.append(server.post("/completion", long)))
    client.start()
    wait_until(lambda: _is_processing(server.url), 30 * PATIENCE, "the prompt is being evaluated")
    time.sleep(1)
    workers[1].kill()
    client.join(60)
    assert told[0].status_code == 503 and "a worker that holds a part of the model was lost" in told[0].text
    wait_until(
        lambda: f"waiting for the worker at {workers[1].endpoint}" in server.said(), 30, "the launcher waits for it"
    )
    assert "a worker that holds a part of the model was lost; starting again" in server.said()

    workers[1].start()
    server.wait_until_healthy(60)
    again = server.post("/completion", short).json()
    assert again["timings"]["cache_n"] >= again["tokens_evaluated"] - 1 and again["content"] == before["content"]
    assert server.stop() == 0


def _is_processing(url: str) -> bool:
    return any(slot["is_processing"] for slot in requests.get(f"{url}/slots", timeout=30).json())
