"""After a restart, what was used last is in RAM again before somebody asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from cache_server import CacheServer, Serve, toy
from helpers import wait_until

from toys.corpus import TEXT

pytestmark = pytest.mark.server

FLAGS = ("--parallel", "1", "--ctx-size", "4096", "--cache-ssd-page-size", "32", "--cache-ssd-settle", "0")


def has_read(server: CacheServer) -> bool:
    return not server.cache()["reading_ahead"]


@pytest.mark.parametrize("kind", ["dense", "hybrid-moe", "swa-gemma3"])
def test_first_request_after_a_start_finds_its_state_in_ram(serve: Serve, kv: Path, kind: str) -> None:
    server = serve(toy(kind), *FLAGS, cache=kv)
    prompt = server.tokens(TEXT)[:300]
    said = [*prompt, *server.complete(prompt, n_predict=8, ignore_eos=True).tokens]
    expected = server.complete(said, ignore_eos=True)
    server.stop()

    server = serve(toy(kind), *FLAGS, "--cache-ssd-read-ahead", "on", cache=kv)
    wait_until(lambda: has_read(server), 30, "what was used last is in RAM")
    read = server.cache()["counters"]["bytes_read_ahead"]
    assert read > 0 and server.cache()["state"]["ram_bytes"] > 0
    answer = server.complete(said, ignore_eos=True)
    assert answer.source == "hot" and answer.reused >= len(said) - 8
    assert answer.text == expected.text
    counters = server.cache()["counters"]
    assert counters["bytes_read"] == 0 and counters["bytes_read_ahead"] == read
    server.stop()

    server = serve(toy(kind), *FLAGS, "--cache-ssd-read-ahead", "off", cache=kv)
    assert has_read(server) and server.complete(said).source == "cold"
    assert server.cache()["counters"]["bytes_read_ahead"] == 0
