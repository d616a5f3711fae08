"""Several clients begin alike at once: the beginning is evaluated for one of them, and the others go on from it."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests
from backend import PATIENCE
from cache_server import Answer, CacheServer, Serve, toy
from helpers import wait_until

import toys
from toys.corpus import TEXT

pytestmark = pytest.mark.server

# Small batches: the first prompt is evaluated for long enough to be met half-way.
FLAGS = ["--parallel", "4", "--ctx-size", "16384", "-b", "64", "-ub", "64"]
FLAGS += ["-ctk", "f32", "-ctv", "f32", "-fa", "off"]
# What a server that knows nobody else is compared with need not be met.
LONE = ["--parallel", "4", "--ctx-size", "16384", "-b", "512", "-ub", "512", *FLAGS[8:]]
PAGES = ("--cache-ssd-page-size", "32")
# A beginning that is evaluated for a third of a second or more, to be met half-way, and for no longer than that needs.
N_SHARED = 1200
N_SHARED_OF = {"mla": 800, "uncut": 800, "hybrid-mamba": 2000, "recurrent": 2000}
N_LONG = 2000  # long enough to look who waits meanwhile


def prompts(server: CacheServer, n: int = 3, n_shared: int = N_SHARED, first_word: int = 0) -> list[list[int]]:
    """They part behind so many tokens; the first tokens of what follows tell them apart."""
    words = server.tokens(TEXT)[first_word:]
    shared = (words * (n_shared // len(words) + 1))[:n_shared]
    return [[*shared, words[7] + 1 + i, *words[10 * i : 10 * i + 30]] for i in range(n)]


def is_evaluating(server: CacheServer) -> bool:
    return any(slot["is_processing"] for slot in server.get("/slots"))


def ask_at_once(server: CacheServer, first: list[int], others: list[list[int]], **options: Any) -> list[Answer]:
    """The others come while the first one's prompt is being evaluated."""
    with ThreadPoolExecutor(len(others) + 1) as clients:
        leader: Future[Answer] = clients.submit(server.complete, first)
        wait_until(lambda: is_evaluating(server) or leader.done(), 20 * PATIENCE, "the first prompt is evaluated")
        answers = [clients.submit(server.complete, prompt, **options) for prompt in others]
        return [leader.result(), *(answer.result() for answer in answers)]


def evaluated(answers: list[Answer]) -> int:
    return sum(int(answer.timings["prompt_n"]) for answer in answers)


@pytest.mark.parametrize("unified", [True, False], ids=["unified", "apart"])
@pytest.mark.parametrize("kind", toys.MODELS)
def test_beginning_is_evaluated_once(serve: Serve, kv: Path, kind: str, unified: bool) -> None:
    layout = "--kv-unified" if unified else "--no-kv-unified"
    server = serve(toy(kind), *FLAGS, *PAGES, layout, cache=kv)
    n_shared = N_SHARED_OF.get(kind, N_SHARED)
    for attempt in range(5):  # A busy machine lets the others come when the first one is answered.
        asked = prompts(server, n_shared=n_shared, first_word=attempt)
        n_new = n_shared + sum(len(prompt) - n_shared for prompt in asked)
        answers = ask_at_once(server, asked[0], asked[1:])
        waited = any("shared_wait_ms" in answer.timings for answer in answers)
        if waited and evaluated(answers) <= 1.1 * n_new:  # One of the others may have waited for the other one alone.
            break
    assert evaluated(answers) <= 1.1 * n_new, [answer.timings for answer in answers]
    if unified:
        assert any(answer.timings["cache_match"] == "shared" for answer in answers[1:])
    lone = serve(toy(kind), *LONE, layout)
    for prompt, answer in zip(asked, answers, strict=True):
        assert answer.apart(lone.complete(prompt, cache_prompt=False)) < 0.01


@pytest.mark.parametrize("kind", ["hybrid-moe", "recurrent", "swa-gemma3"])
def test_who_parts_where_others_did_goes_on_from_there(serve: Serve, kv: Path, kind: str) -> None:
    """One after the other, in the middle of a message: where the second one parts from the first, a copy is left."""
    flags = (*FLAGS, *PAGES, "--cache-ssd-settle", "30")
    server = serve(toy(kind), *flags, cache=kv)
    asked = prompts(server, 4, n_shared=900)
    first = server.complete(asked[0], prompt_cache_key="chat 0")
    if kind == "swa-gemma3":  # A slot that holds all of the first one can go back to where they part.
        server.stop()
        server = serve(toy(kind), *flags, cache=kv)
    second = server.complete(asked[1], prompt_cache_key="chat 1")
    assert (second.reused, second.miss) == (0, "no_anchor"), second.timings
    # What the second one leaves for others is theirs still when it has gone on.
    server.complete([*asked[1], *second.tokens, *asked[0][:80]], prompt_cache_key="chat 1")
    third = server.complete(asked[2], prompt_cache_key="chat 2")
    assert 860 <= third.reused <= 900, third.timings
    server.stop()
    server = serve(toy(kind), *flags, cache=kv)
    fourth = server.complete(asked[3], prompt_cache_key="chat 3")
    assert fourth.source == "cold" and 860 <= fourth.reused <= 900, fourth.timings
    lone = serve(toy(kind), *LONE)
    for prompt, answer in zip(asked, (first, second, third, fourth), strict=True):
        assert answer.apart(lone.complete(prompt, cache_prompt=False)) < 0.01


@pytest.mark.parametrize("kind", ["hybrid-moe", "recurrent"])
def test_who_comes_behind_the_place_where_others_part_goes_on_from_there(serve: Serve, kv: Path, kind: str) -> None:
    """The copy that the second one left there is not handed over yet, and its own prompt goes on for long."""
    server = serve(toy(kind), *FLAGS, *PAGES, cache=kv)
    asked = prompts(server, 3, n_shared=900)
    server.complete(asked[0])
    long = [*asked[1], *server.tokens(TEXT)[:2000]]

    def is_past() -> bool:
        return any(slot["is_processing"] and slot["n_prompt_tokens_processed"] > 1000 for slot in server.get("/slots"))

    with ThreadPoolExecutor(1) as clients:
        second = clients.submit(server.complete, long)
        wait_until(lambda: is_past() or second.done(), 60 * PATIENCE, "the second one is past the place")
        third = server.complete(asked[2])
        assert second.result().miss == "no_anchor"
    assert 860 <= third.reused <= 900, third.timings
    lone = serve(toy(kind), *LONE)
    for prompt, answer in ((long, second.result()), (asked[2], third)):
        assert answer.apart(lone.complete(prompt, cache_prompt=False)) < 0.01


@pytest.mark.parametrize("kind", ["hybrid-moe"])
def test_a_herds_beginning_is_there_when_its_first_has_gone_on(serve: Serve, kv: Path, kind: str) -> None:
    server = serve(toy(kind), *FLAGS, *PAGES, "--kv-unified", "--cache-ssd-settle", "30", cache=kv)
    asked = prompts(server, 4)
    answers = ask_at_once(server, asked[0], asked[1:3])
    for prompt, answer in zip(asked, answers, strict=False):
        server.complete([*prompt, *answer.tokens, *asked[0][:80]])
    server.stop()  # Slots keep copies of their own.
    server = serve(toy(kind), *FLAGS, *PAGES, "--kv-unified", cache=kv)
    late = server.complete(asked[3])
    assert late.source == "cold" and late.reused >= N_SHARED - 64, late.timings


@pytest.mark.parametrize("kind", ["dense", "hybrid-moe"])
def test_who_comes_during_the_answer_goes_on_from_its_prompt(serve: Serve, kv: Path, kind: str) -> None:
    """The end of a prompt is handed over when somebody wants it, though its answer has just begun."""
    # A slot has room for an answer that is still being given when the other one has its own, however busy the machine.
    flags = ["--parallel", "4", "--ctx-size", "32768", *FLAGS[4:], "--no-kv-unified"]
    server = serve(toy(kind), *flags, *PAGES, cache=kv)
    server.complete(server.tokens("Another one"))
    server.flush()  # What is made once only is there.
    asked = prompts(server, 2)
    body = {"prompt": asked[0], "n_predict": 6000, "ignore_eos": True, "stream": True}
    with requests.post(f"{server.url}/completion", json=body, stream=True, timeout=60 * PATIENCE) as first:
        lines = first.iter_lines()
        next(lines)
        other = server.complete([*asked[0], *asked[1][-30:]])
        assert is_evaluating(server), "the first one is still answered"
    assert other.reused >= len(asked[0]) - 8, other.timings
    assert other.apart(serve(toy(kind), *LONE, "--no-kv-unified").complete([*asked[0], *asked[1][-30:]])) < 0.01


@pytest.mark.parametrize("n_stored", [0, 64], ids=["new", "stored in part"])
@pytest.mark.parametrize("kind", ["dense", "mla"])
def test_who_comes_between_two_batches_goes_on_from_the_first(serve: Serve, kv: Path, kind: str, n_stored: int) -> None:
    """What is shared was evaluated in a large batch, and the first prompt is not whole: nothing was handed over yet."""
    flags = ["--parallel", "4", "--ctx-size", "16384", "-b", "1024", *FLAGS[6:], "--no-kv-unified"]
    server = serve(toy(kind), *flags, *PAGES, cache=kv)
    words = server.tokens(TEXT)
    shared = (words * 3)[:900]
    if n_stored:
        server.complete([*shared[:n_stored], words[9] + 1])
        server.stop()
        server = serve(toy(kind), *flags, *PAGES, cache=kv)
    first = [*shared, *(words[5:] * 9)[:1200]]
    others = [[*shared, words[7] + 1 + i, *words[10 * i : 10 * i + 30]] for i in range(2)]
    leader, *answers = ask_at_once(server, first, others)
    assert leader.reused == n_stored
    assert [answer.reused for answer in answers] == [len(shared)] * 2, [answer.timings for answer in answers]
    lone = serve(toy(kind), *flags)
    for prompt, answer in zip(others, answers, strict=True):
        assert answer.apart(lone.complete(prompt)) < 0.01


def test_users_do_not_share(serve: Serve, kv: Path) -> None:
    server = serve(toy("hybrid-moe"), *FLAGS, *PAGES, "--kv-unified", cache=kv)
    asked = prompts(server, 2)
    _, other = ask_at_once(server, asked[0], asked[1:], llama_user_id="somebody")
    assert other.reused == 0


CHAT = "first"


def ask(server: CacheServer, prompt: list[int], stream: str = "", **options: Any) -> Callable[[], None]:
    """Asks, and gives what ends the connection. A stream with a name goes on without one."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    body = json.dumps({"prompt": prompt, "n_predict": 64, "stream": True, **options})
    headers = {"Content-Type": "application/json"} | ({"X-Conversation-Id": stream} if stream else {})
    connection.request("POST", "/completion", body, headers)
    return connection.close


def waiting(server: CacheServer) -> int:
    return int(server.cache()["plan"]["queue"]["waiting"])


def all_wait_or_none_can(server: CacheServer) -> bool:
    """A busy machine lets the others come when the first one is answered: then there is nothing to wait for."""
    return waiting(server) == 2 or not is_evaluating(server)


@pytest.mark.parametrize("kind", ["dense", "hybrid-moe", "swa-gemma3"])
@pytest.mark.parametrize("end", ["dropped", "cancelled", "conversation deleted", "user deleted"])
def test_others_are_answered_when_the_first_ends_early(serve: Serve, kv: Path, kind: str, end: str) -> None:
    server = serve(toy(kind), *FLAGS, *PAGES, "--kv-unified", cache=kv)
    asked = prompts(server, n_shared=N_LONG)
    begun = asked[0][:400]
    server.complete(begun, prompt_cache_key=CHAT, llama_user_id="somebody")
    server.flush()
    (conversation,) = server.get("/cache/conversations?user_id=somebody")["conversations"]
    stream = CHAT if end == "cancelled" else ""
    drop = ask(server, asked[0], stream, llama_user_id="somebody", prompt_cache_key=CHAT)
    wait_until(lambda: is_evaluating(server), 20 * PATIENCE, "the first prompt is evaluated")
    with ThreadPoolExecutor(2) as clients:
        answers = [clients.submit(server.complete, prompt, llama_user_id="somebody") for prompt in asked[1:]]
        wait_until(lambda: all_wait_or_none_can(server), 60 * PATIENCE, "the others wait for it")
        if end == "dropped":
            drop()
        elif end == "cancelled":
            assert server.request("DELETE", f"/v1/stream?conv_id={CHAT}").status_code == 204
        elif end == "conversation deleted":
            path = f"/cache/conversations/{conversation['hash']}?user_id=somebody"
            assert server.request("DELETE", path).status_code == 200
        else:  # what is theirs as well: they are answered all the same
            assert server.request("DELETE", "/cache/users/somebody").status_code == 200
        told = [answer.result() for answer in answers]
    drop()
    lone = serve(toy(kind), *LONE, "--kv-unified")
    for prompt, answer in zip(asked[1:], told, strict=True):
        assert answer.apart(lone.complete(prompt, cache_prompt=False)) < 0.01


@pytest.mark.parametrize("kind", ["dense", "hybrid-mamba"])
def test_killed_in_the_middle_of_a_herd(serve: Serve, kv: Path, kind: str) -> None:
    server = serve(toy(kind), *FLAGS, *PAGES, "--kv-unified", cache=kv)
    asked = prompts(server, n_shared=N_LONG)
    drops = [ask(server, asked[0])]
    wait_until(lambda: is_evaluating(server), 20 * PATIENCE, "a prompt is evaluated")
    drops += [ask(server, prompt) for prompt in asked[1:]]
    wait_until(lambda: all_wait_or_none_can(server), 60 * PATIENCE, "the others wait for it")
    server.kill()
    for drop in drops:
        drop()
    server = serve(toy(kind), *FLAGS, *PAGES, "--kv-unified", cache=kv)
    lone = serve(toy(kind), *LONE, "--kv-unified")
    answers = ask_at_once(server, asked[0], asked[1:])
    for prompt, answer in zip(asked, answers, strict=True):
        assert answer.apart(lone.complete(prompt, cache_prompt=False)) < 0.01


def ask_beside_a_herd(server: CacheServer, asked: list[list[int]]) -> bool:
    """Asks for something else while the others wait for the first one. False: they came too late for that."""
    with ThreadPoolExecutor(3) as clients:
        first = clients.submit(server.complete, asked[0], 1000, ignore_eos=True)
        wait_until(lambda: is_evaluating(server) or first.done(), 20 * PATIENCE, "the first prompt is evaluated")
        others = [clients.submit(server.complete, prompt, 1000, ignore_eos=True) for prompt in asked[1:]]
        wait_until(lambda: waiting(server) == 2 or first.done(), 120 * PATIENCE, "the others wait for it")
        if first.done():
            return False
        alone = server.complete(server.tokens("Another one")[::-1], 2)
        assert not any(answer.done() for answer in (first, *others)), "it was answered before those"
        assert "shared_wait_ms" not in alone.timings
        assert all(answer.result().text for answer in (first, *others))
    return True


def test_who_shares_nothing_does_not_wait_behind_a_herd(serve: Serve, kv: Path) -> None:
    server = serve(toy("dense"), *FLAGS, *PAGES, "--kv-unified", cache=kv)
    for attempt in range(5):
        if ask_beside_a_herd(server, prompts(server, n_shared=N_LONG, first_word=attempt)):
            return
    pytest.fail("the others never came in time")


def test_cells_that_are_shared_are_not_moved(serve: Serve, kv: Path) -> None:
    """A request that moves what its slot holds (n_cache_reuse) must leave alone what another slot uses as well."""
    for attempt in range(5):  # A busy machine lets the second one come when the first one is answered.
        server = serve(toy("dense"), *FLAGS, *PAGES, "--kv-unified", cache=kv)  # where both get the first two slots
        asked = prompts(server, 2, N_LONG, first_word=attempt)
        first, second = ask_at_once(server, asked[0], asked[1:])
        if second.timings["cache_match"] == "shared":
            break
        server.stop()
    assert second.timings["cache_match"] == "shared"
    moved = asked[1][300:900] + asked[1][40:200]
    server.complete(moved, n_cache_reuse=64, id_slot=int(server.get("/slots")[1]["id"]))
    server.complete(moved, n_cache_reuse=64, id_slot=int(server.get("/slots")[0]["id"]))
    lone = serve(toy("dense"), *LONE, "--kv-unified")
    for prompt in asked:
        assert server.complete(prompt).apart(lone.complete(prompt, cache_prompt=False)) < 0.01
    assert first.text


@pytest.mark.parametrize("kind", ["dense", "hybrid-moe"])
def test_what_a_slot_still_holds_of_another_prompt_is_not_shared(serve: Serve, kv: Path, kind: str) -> None:
    """A request has its slot and waits for room in a batch: the slot holds what the one before left there."""
    server = serve(toy(kind), *FLAGS, *PAGES, "--kv-unified", cache=kv)
    words = server.tokens(TEXT)
    shared, left, asked = (words * 2)[:400], (words[5:] * 5)[:1600], (words[90:] * 4)[:1200]
    fills_every_batch = (words[33:] * 20)[:2500]
    server.complete([*shared, *left], id_slot=1)
    with ThreadPoolExecutor(3) as clients:
        first = clients.submit(server.complete, fills_every_batch, id_slot=0)
        wait_until(lambda: is_evaluating(server), 20 * PATIENCE, "every batch is filled")
        prompts = [[*shared, *asked, *words[7 * i : 7 * i + 20]] for i in range(2)]
        answers = [clients.submit(server.complete, prompt, id_slot=1 + i) for i, prompt in enumerate(prompts)]
        first.result()
        told = [answer.result() for answer in answers]
    lone = serve(toy(kind), *LONE, "--kv-unified")
    for prompt, answer in zip(prompts, told, strict=True):
        assert answer.apart(lone.complete(prompt, cache_prompt=False)) < 0.01


def test_what_was_asked_without_the_cache_is_shared_with_nobody(serve: Serve, kv: Path) -> None:
    server = serve(toy("dense"), *FLAGS, *PAGES, "--kv-unified", cache=kv)
    prompt = prompts(server, 1)[0]
    server.complete(prompt, cache_prompt=False, llama_user_id="somebody")
    assert server.complete([*prompt, *prompt[:9]]).reused == 0


def test_who_waits_behind_a_removal_is_answered(serve: Serve, kv: Path) -> None:
    """The removal erases the only slot once it is free, which is no request's end."""
    server = serve(toy("dense"), *FLAGS[2:], *PAGES, "--parallel", "1", cache=kv)
    first, second = prompts(server, 2)
    with ThreadPoolExecutor(2) as clients:
        served = clients.submit(server.complete, first, n_predict=300, ignore_eos=True, llama_user_id="somebody")
        wait_until(lambda: is_evaluating(server), 20 * PATIENCE, "the first one is answered")
        assert server.request("DELETE", "/cache/users/somebody").status_code == 200
        waiting = clients.submit(server.complete, second)
        assert served.result(60 * PATIENCE).text and waiting.result(60 * PATIENCE).text
