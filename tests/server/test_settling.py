"""Folded state is written when its conversation rests: turns that follow each other write it once."""

from __future__ import annotations

from pathlib import Path

import pytest
from cache_server import CacheServer, Serve, toy
from helpers import wait_until

from toys.corpus import TEXT

pytestmark = pytest.mark.server

KINDS = ["hybrid-moe", "recurrent", "swa-gemma3"]
FLAGS = ("--parallel", "1", "--ctx-size", "4096", "--cache-ssd-page-size", "32")
N_TURNS = 11


def converse(server: CacheServer, n_turns: int) -> list[int]:
    """Asks turn after turn, each with all that was said before; gives what the next one would begin with."""
    words = server.tokens(TEXT)
    said = words[:150]
    for turn in range(n_turns):
        answer = server.complete(said, n_predict=8, ignore_eos=True, prompt_cache_key="talk")
        assert answer.reused >= (len(said) - 50 if turn > 0 else 0), answer.timings
        said = [*said, *answer.tokens, *words[200 + 30 * turn : 230 + 30 * turn]]
    return said


def anchors(kv: Path) -> list[Path]:
    return list(kv.rglob("*.anc"))


@pytest.mark.parametrize("kind", KINDS)
def test_session_writes_its_last_anchors_and_stopping_keeps_all(serve: Serve, kv: Path, kind: str) -> None:
    server = serve(toy(kind), *FLAGS, "--cache-ssd-settle", "3600", cache=kv)
    said = converse(server, N_TURNS)
    wait_until(lambda: server.cache()["state"]["unwritten"] > 0, 30, "its rows are written, its anchors wait")
    assert len(anchors(kv)) == 0, "nothing has rested yet"
    server.stop()
    assert 1 <= len(anchors(kv)) <= 4
    server = serve(toy(kind), *FLAGS, cache=kv)
    again = server.complete(said)
    assert again.source == "cold" and again.reused >= len(said) - 31


def test_kill_costs_what_came_after_the_last_rest(serve: Serve, kv: Path) -> None:
    flags = (*FLAGS, "--cache-ssd-settle", "1")
    server = serve(toy("hybrid-moe"), *flags, cache=kv)
    rested = converse(server, 3)
    written = len(rested) - 31  # without the 30 words that nobody has asked yet, and the answer's last token
    wait_until(lambda: any(one["tokens"] >= written for one in server.conversations()), 30, "it has rested")
    said = [*rested, *server.complete(rested, n_predict=8, ignore_eos=True, prompt_cache_key="talk").tokens]
    server.kill()
    server = serve(toy("hybrid-moe"), *flags, cache=kv)
    again = server.complete(said)
    assert len(rested) - 31 <= again.reused < len(said)


def test_without_settling_a_kill_costs_nothing_that_was_written(serve: Serve, kv: Path) -> None:
    flags = (*FLAGS, "--cache-ssd-settle", "0")
    server = serve(toy("hybrid-moe"), *flags, cache=kv)
    said = converse(server, 3)
    wait_until(lambda: server.cache()["state"]["queued"] == 0, 30, "everything is written")
    server.kill()
    server = serve(toy("hybrid-moe"), *flags, cache=kv)
    assert server.complete(said).reused >= len(said) - 31


def test_another_slot_goes_on_from_what_is_not_written(serve: Serve, kv: Path) -> None:
    server = serve(toy("hybrid-moe"), *FLAGS, "--cache-ssd-settle", "3600", cache=kv)
    said = converse(server, 2)
    server.complete(server.tokens(TEXT)[900:1100])  # the slot is another's now
    wait_until(lambda: server.cache()["state"]["queued"] == 0, 30, "its rows are written")
    again = server.complete(said)
    assert again.source == "hot" and again.reused >= len(said) - 31
    assert len(anchors(kv)) == 0


@pytest.mark.parametrize("kind", ["dense", "hybrid-moe"])
def test_a_prompt_whose_answer_fills_the_context_is_stored(serve: Serve, kv: Path, kind: str) -> None:
    """Upstream says of such an answer that it was cut off, as it does of tokens that it has moved."""
    server = serve(toy(kind), "--parallel", "1", "--ctx-size", "512", "--cache-ssd-page-size", "32", cache=kv)
    said = server.tokens(TEXT)[:500]
    server.complete(said, 64, ignore_eos=True)
    server.complete(server.tokens("Other words")[::-1], 2)
    server.flush()
    assert server.complete(said, 2).reused >= 490
