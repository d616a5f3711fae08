"""Folded state is written when its conversation rests: turns that follow each other write it once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from cache_server import CacheServer, Serve, toy
from helpers import wait_until

from toys.corpus import TEXT

pytestmark = pytest.mark.server

KINDS = ["hybrid-moe", "recurrent", "swa-gemma3"]
FLAGS = ("--parallel", "1", "--ctx-size", "4096", "--cache-ssd-page-size", "32")
N_TURNS = 11


def converse(server: CacheServer, n_turns: int, begun: Sequence[int] = (), n_new: int = 30) -> list[int]:
    """Asks turn after turn, each with all that was said before; gives what the next one would begin with."""
    words = server.tokens(TEXT)
    said = list(begun) or words[:150]
    for turn in range(n_turns):
        answer = server.complete(said, n_predict=8, ignore_eos=True, prompt_cache_key="talk")
        assert answer.reused >= (len(said) - n_new - 20 if turn > 0 else 0), answer.timings
        said = [*said, *answer.tokens, *(words[200 + 30 * turn :] * 2)[:n_new]]
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


@pytest.mark.parametrize("kind", ["hybrid-moe", "hybrid-mamba"])
def test_session_writes_its_rows_once_and_few_anchors(serve: Serve, kv: Path, kind: str) -> None:
    flags = ("--parallel", "1", "--ctx-size", "8192", "--cache-ssd-settle", "60")  # whatever a turn takes
    server = serve(toy(kind), *flags, cache=kv)
    n_stored = len(converse(server, N_TURNS, n_new=190)) - 190
    context = int(server.cache()["memory"]["context"])
    server.stop()
    folded = max(path.stat().st_size for path in anchors(kv))  # with a head: a row is no larger than this makes it
    row = (context - folded) // 8192
    server = serve(toy(kind), *flags, cache=kv)
    written = int(server.cache()["written"]["ever"])
    assert row * n_stored < written <= 1.05 * row * n_stored + 4 * folded


@pytest.mark.parametrize("kind", ["hybrid-moe", "recurrent"])
@pytest.mark.parametrize(("n_rested", "n_more"), [(1, 1), (2, 3), (6, 2), (N_TURNS, 0)])
def test_kill_costs_what_came_after_the_last_rest(
    serve: Serve, kv: Path, kind: str, n_rested: int, n_more: int
) -> None:
    server = serve(toy(kind), *FLAGS, "--cache-ssd-settle", "1", cache=kv)
    rested = converse(server, n_rested)
    written = len(rested) - 31  # without the 30 words that nobody has asked yet, and the answer's last token
    wait_until(lambda: any(one["tokens"] >= written for one in server.conversations()), 30, "it has rested")
    said = converse(server, n_more, rested)
    server.kill()
    server = serve(toy(kind), *FLAGS, "--cache-ssd-settle", "1", cache=kv)
    assert server.complete(said).reused >= written


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_turns", [1, 3, N_TURNS])
def test_without_settling_a_kill_costs_nothing_that_was_written(
    serve: Serve, kv: Path, kind: str, n_turns: int
) -> None:
    flags = (*FLAGS, "--cache-ssd-settle", "0")
    server = serve(toy(kind), *flags, cache=kv)
    said = converse(server, n_turns)
    wait_until(lambda: server.cache()["state"]["queued"] == 0, 30, "everything is written")
    server.kill()
    server = serve(toy(kind), *flags, cache=kv)
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
