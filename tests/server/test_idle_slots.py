"""What idle slots hold is cleared where it slows others down, and comes back from RAM."""

from __future__ import annotations

from pathlib import Path

import pytest
from cache_server import CacheServer, Serve, Tokens, toy

import toys
from toys.corpus import TEXT

pytestmark = pytest.mark.server

FLAGS = ("--parallel", "3", "--ctx-size", "8192", "-b", "512", "-ctk", "f32", "-ctv", "f32", "-fa", "off")
UNIFIED = ("--kv-unified",)
LONG = 1200  # tokens, more than a batch: such a prompt is slowed down by what other slots hold
TIE = 0.1


def prompt(server: CacheServer, number: int, n_tokens: int) -> Tokens:
    """They part at their first token."""
    words = server.tokens(TEXT)
    return [words[number], *(words[50:] * (n_tokens // len(words) + 2))[: n_tokens - 1]]


@pytest.mark.parametrize("kind", [kind for kind in toys.MODELS if not kind.startswith("swa")])
def test_a_long_prompt_finds_the_cells_of_idle_slots_free(serve: Serve, kv: Path, kind: str) -> None:
    lone = serve(toy(kind), *FLAGS)
    server = serve(toy(kind), *FLAGS, *UNIFIED, cache=kv)
    first, second = prompt(server, 1, 300), prompt(server, 2, LONG)
    before = server.complete(first, 4)
    server.complete(second, 4)
    server.flush()
    again = server.complete([*first, *before.tokens], 4)
    assert again.source == "hot", again.timings
    assert again.reused >= len(first)
    assert again.apart(lone.complete([*first, *before.tokens], 4, cache_prompt=False)) < TIE


@pytest.mark.parametrize("layout", ["--kv-unified", "--no-kv-unified"])
def test_what_slows_nobody_stays(serve: Serve, kv: Path, layout: str) -> None:
    server = serve(toy("dense"), *FLAGS, layout, cache=kv)
    first = prompt(server, 1, 300)
    server.complete(first, 4)
    server.complete(prompt(server, 2, 300 if layout == "--kv-unified" else LONG), 4)
    assert server.complete(first, 4).source == "slot"


def test_what_a_long_prompt_begins_with_stays(serve: Serve, kv: Path) -> None:
    server = serve(toy("dense"), *FLAGS, *UNIFIED, "--cache-ssd-page-size", "32", cache=kv)
    first = prompt(server, 1, 960)
    server.complete(first, 4)
    server.post("/cache/flush", {})
    assert server.complete([*first[:320], *reversed(prompt(server, 2, LONG))], 4).timings["cache_match"] == "shared"
    assert server.complete(first, 4).source == "slot"


def test_what_would_have_to_come_from_the_disk_stays(serve: Serve, kv: Path) -> None:
    server = serve(toy("dense"), *FLAGS, *UNIFIED, "--cache-ssd-ram", "100K", cache=kv)
    first = prompt(server, 1, 600)
    server.complete(first, 4)
    server.post("/cache/flush", {})
    server.complete(prompt(server, 2, LONG), 4)
    assert server.complete(first, 4).source == "slot"


def test_looking_at_idle_slots_is_no_hit(serve: Serve, kv: Path) -> None:
    server = serve(toy("dense"), *FLAGS, *UNIFIED, cache=kv)
    for number in range(3):
        server.complete(prompt(server, number, LONG), 4)
    assert server.cache()["counters"]["hits"] == 0
