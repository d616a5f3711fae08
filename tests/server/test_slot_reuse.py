"""What a slot holds is reused where its tokens are the prompt's, and by whom they belong to."""

from __future__ import annotations

from pathlib import Path

import pytest
from cache_server import CacheServer, Serve, Tokens, toy

import toys
from toys.corpus import TEXT

pytestmark = pytest.mark.server

LINES = TEXT.splitlines()
# Log-probability. Batches of other sizes round differently; a wrong state is off by more.
TIE = 0.1
ONE_SLOT = ("--parallel", "1", "--ctx-size", "4096", "-ctk", "f32", "-ctv", "f32")


def three_prompts(server: CacheServer) -> list[Tokens]:
    """A short one, a long one with another first token, and one that shares 35 tokens with the long one."""
    text = server.tokens(" ".join(LINES[:12]))
    short = [text[60], *text[40:44]]
    long = text[:160]
    assert short[0] != long[0]
    return [short, long, long[:35] + text[90:120]]


@pytest.mark.parametrize("name", toys.MODELS)
def test_checkpoint_of_other_tokens_is_not_used(serve: Serve, kv: Path, name: str) -> None:
    lone = serve(toy(name), *ONE_SLOT)
    server = serve(toy(name), *ONE_SLOT, cache=kv)
    for prompt in three_prompts(server):
        wanted = lone.complete(prompt, cache_prompt=False)
        answer = server.complete(prompt)
        assert answer.apart(wanted) < TIE, f"{len(prompt)} tokens, {answer.reused} from {answer.source}"
    server.stop()
    server = serve(toy(name), *ONE_SLOT, cache=kv)
    for prompt in three_prompts(server):
        assert server.complete(prompt).apart(lone.complete(prompt, cache_prompt=False)) < TIE


def test_state_that_parts_one_token_before_a_checkpoint_is_not_used(serve: Serve, kv: Path) -> None:
    """Upstream takes a checkpoint that ends one token behind where the prompts part."""
    lone = serve(toy("hybrid-moe"), *ONE_SLOT)
    server = serve(toy("hybrid-moe"), *ONE_SLOT, cache=kv)
    text = server.tokens(" ".join(LINES[:12]))
    first = text[:100]
    server.complete(first)
    for n_common in range(90, 101):
        prompt = [*first[:n_common], *text[200:220]]
        assert server.complete(prompt).apart(lone.complete(prompt, cache_prompt=False)) < TIE, n_common
        server.complete(first)


@pytest.mark.parametrize("name", ["dense", "hybrid-moe"])
def test_agents_that_take_turns_find_their_state_in_ram(serve: Serve, kv: Path, name: str) -> None:
    """All of them are one user's: each one's state has had no use for as many turns as there are others."""
    server = serve(toy(name), *ONE_SLOT, cache=kv)
    text = server.tokens(" ".join(LINES))
    agents = [text[start : start + 60] for start in range(0, 720, 60)]
    for prompt in agents:
        server.complete(prompt)
    server.flush()
    for prompt in agents:
        answer = server.complete([*prompt, *text[720:740]])
        assert answer.source in ("hot", "warm") and answer.reused >= 50, answer.timings


@pytest.mark.parametrize("name", toys.MODELS)
def test_state_that_waits_to_be_written_is_found(serve: Serve, kv: Path, name: str) -> None:
    """On a low battery all of it does."""
    lone = serve(toy(name), *ONE_SLOT)
    server = serve(toy(name), *ONE_SLOT, cache=kv)
    server.post("/cache/power", {"mains": False, "battery": 5})
    text = server.tokens(" ".join(LINES[:12]))
    agents = [[*text[:50], *text[start : start + 100]] for start in (50, 60, 70)]
    for prompt in agents:
        server.complete(prompt)
    for prompt in agents:
        longer = [*prompt, *text[180:200]]
        answer = server.complete(longer)
        assert answer.source in ("hot", "warm") and answer.reused >= 140, answer.timings
        assert answer.apart(lone.complete(longer, cache_prompt=False)) < TIE
    assert server.cache()["counters"]["saves"] == 0, "nothing was written for that"


def test_request_that_is_refused_stores_nothing(serve: Serve, kv: Path) -> None:
    """The slot still holds the conversation before it."""
    server = serve(toy("dense"), "--parallel", "1", "--ctx-size", "512", cache=kv)
    server.complete(server.tokens(" ".join(LINES[:6])))
    before = server.flush()["counters"]["checkpoints_written"]
    too_long = {"prompt": server.tokens(" ".join(LINES)), "n_predict": 1}
    assert server.request("POST", "/completion", too_long).status_code == 400
    assert server.flush()["counters"]["checkpoints_written"] == before


def test_answers_of_n_belong_to_nobody_else(serve: Serve, tmp_path: Path) -> None:
    """n > 1 evaluates the prompt in one slot and copies it into others."""
    server = serve(toy("dense"), "--parallel", "3", "--ctx-size", "12288", cache=tmp_path / "kv")
    prompt = server.tokens(" ".join(LINES[:6]))
    server.complete(server.tokens(" ".join(LINES[20:24])), llama_user_id="ben")
    body = {"prompt": prompt, "n_predict": 4, "temperature": 0, "n_cmpl": 2, "llama_user_id": "ann"}
    assert len(server.post("/completion", body)) == 2
    for slot in range(3):
        for stranger in "ben", "":
            answer = server.complete(prompt, id_slot=slot, llama_user_id=stranger)
            assert answer.reused == 0 or answer.source != "slot", f"slot {slot}, {stranger or 'anonymous'}"


def test_restored_slot_file_is_no_users(serve: Serve, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    saved.mkdir()
    server = serve(
        toy("dense"), "--parallel", "2", "--ctx-size", "8192", "--slot-save-path", str(saved), cache=tmp_path / "kv"
    )
    prompt = server.tokens(" ".join(LINES[:6]))
    server.complete(prompt, id_slot=0, llama_user_id="ann")
    server.complete(server.tokens(" ".join(LINES[20:24])), id_slot=1, llama_user_id="ben")
    server.post("/slots/0?action=save", {"filename": "ann"})
    server.post("/slots/1?action=restore", {"filename": "ann"})
    assert server.complete(prompt, id_slot=1, llama_user_id="ben").reused == 0
