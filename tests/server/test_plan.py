"""What a request will take is known before the work, and what does not fit is refused before it, with numbers."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
import requests
from cache_server import CacheServer, Serve, say, smollm2, toy
from helpers import wait_until

from toys.corpus import TEXT

pytestmark = pytest.mark.server

WORDS = TEXT.split()
CELLS = 1024
SHARED = ("--parallel", "4", "--ctx-size", str(CELLS), "--kv-unified")


def plan(server: CacheServer, **body: Any) -> dict[str, Any]:
    return dict(server.post("/cache/plan", body))


def prompt(seed: int, words: int) -> list[dict[str, str]]:
    return [say("user", " ".join(WORDS[(seed * 37 + n) % len(WORDS)] for n in range(words)))]


def test_a_plan_names_what_is_reused_and_evaluates_nothing(serve: Serve, kv: Path) -> None:
    server = serve(toy("hybrid-mamba"), "--parallel", "2", "--ctx-size", "2048", "--no-kv-unified", cache=kv)
    messages = prompt(1, 150)
    cold = plan(server, messages=messages)
    assert (cold["reused"], cold["source"], cold["measured"]) == (0, "none", False)
    assert cold["fits"] == cold["fits"] | {"context": True, "memory": True, "now": True}
    assert server.cache()["requests"]["finished"] == 0
    asked = server.chat(messages)
    assert asked.prompt_size == cold["tokens"]
    before = server.flush()["requests"]
    warm = plan(server, messages=[*messages, say("assistant", asked.text), say("user", "More.")])
    told = server.chat([*messages, say("assistant", asked.text), say("user", "More.")])
    assert (told.reused, told.source) == (warm["reused"], warm["source"]) and warm["measured"]
    assert server.flush()["requests"]["tokens_evaluated"] == before["tokens_evaluated"] + told.timings["prompt_n"]
    # The same for the other APIs, and for bodies that upstream refuses.
    system = " ".join(WORDS[:40])
    assert plan(server, system=system, messages=messages, max_tokens=5)["tokens"] > 40
    assert plan(server, instructions=system, input="Hello")["tokens"] > 40
    assert plan(server, prompt="a b c")["tokens"] >= 3
    assert server.request("POST", "/cache/plan", {"messages": "none"}).status_code == 400
    assert not plan(server, prompt=[1] * 3000)["fits"]["context"]


def test_requests_that_need_three_times_the_cells_are_all_answered_in_full(serve: Serve, kv: Path) -> None:
    server = serve(toy("dense"), *SHARED, cache=kv)

    def ask(seed: int) -> tuple[int, str]:
        body = {"messages": prompt(seed, 120), "max_tokens": 100, "temperature": 0, "ignore_eos": True}
        answer = server.request("POST", "/v1/chat/completions", body)
        assert answer.status_code == 200, answer.text
        told = answer.json()
        return told["usage"]["total_tokens"], told["choices"][0]["finish_reason"]

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(ask, range(12)))
    assert sum(total for total, _ in answers) >= 3 * CELLS
    assert {reason for _, reason in answers} == {"length"}
    assert all(total > 200 for total, _ in answers)
    assert server.cache()["plan"]["cells"]["total"] == CELLS
    wait_until(lambda: server.cache()["plan"]["cells"]["free"] == CELLS, 30, "cells are given back")


def test_an_answer_without_a_limit_grows_while_there_are_cells_and_then_ends(serve: Serve, kv: Path) -> None:
    server = serve(toy("dense"), *SHARED, cache=kv)

    def ask(seed: int) -> tuple[int, str]:
        told = server.post("/v1/chat/completions", {"messages": prompt(seed, 40), "ignore_eos": True, "temperature": 0})
        return told["usage"]["completion_tokens"], told["choices"][0]["finish_reason"]

    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(ask, range(3)))
    assert all(reason == "length" and tokens >= CELLS // 8 for tokens, reason in answers), answers
    assert sum(tokens for tokens, _ in answers) > CELLS // 2


def test_what_can_never_fit_is_refused_at_once_with_numbers_streams_too(serve: Serve, kv: Path) -> None:
    server = serve(toy("dense"), *SHARED, cache=kv)
    body = {"messages": prompt(1, 60), "max_tokens": 400, "n": 4}
    for stream in (False, True):
        answer = server.request("POST", "/v1/chat/completions", body | {"stream": stream})
        error = answer.json()["error"]
        assert answer.status_code == 413 and error["tokens"] > error["tokens_most"] == CELLS
        assert error["bytes"] > error["bytes_most"] > 0 and "memory" in error["message"]
        assert "context" not in error["message"]
    assert server.cache()["plan"]["cells"]["refused"] == 2 and server.cache()["requests"]["finished"] == 0
    assert not plan(server, **body)["fits"]["memory"]


def test_a_full_queue_is_503_and_the_clients_own_retry_succeeds(serve: Serve, kv: Path) -> None:
    flags = ("--parallel", "1", "--ctx-size", "2048", "--max-queue", "1")
    server = serve(smollm2(), *flags, cache=kv)
    server.chat(prompt(0, 20), max_tokens=32, ignore_eos=True)
    long: dict[str, Any] = {"messages": prompt(1, 20), "max_tokens": 120, "ignore_eos": True}
    first = server.request("POST", "/v1/chat/completions", long | {"max_tokens": 1900, "stream": True}, stream=True)
    second = threading.Thread(target=server.post, args=("/v1/chat/completions", long))
    second.start()
    wait_until(lambda: server.cache()["plan"]["queue"]["waiting"] == 1, 30, "one is served and one waits")
    for path, extra in (("/v1/chat/completions", {"stream": True}), ("/v1/messages", {})):
        refused = server.request("POST", path, long | extra)
        assert refused.status_code == 503 and int(refused.headers["Retry-After"]) >= 1, refused.text
        assert "queue" in refused.json()["error"]["message"] and "context" not in refused.text
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=8)
    hi: Any = {"model": "any", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    with ThreadPoolExecutor(1) as clients:
        asked = clients.submit(lambda: client.chat.completions.create(**hi))
        wait_until(lambda: server.cache()["plan"]["queue"]["refused_full"] >= 3, 60, "the client was refused")
        first.close()
        assert asked.result().choices[0].message.content is not None
    second.join()


def test_every_answer_of_a_request_takes_a_slot(serve: Serve, kv: Path) -> None:
    server = serve(toy("dense"), *SHARED, "--ctx-size", "65536", "--max-queue", "0", cache=kv)
    body = {"messages": prompt(1, 20), "n": 4, "max_tokens": 15000, "ignore_eos": True, "stream": True}
    with requests.post(f"{server.url}/v1/chat/completions", json=body, stream=True, timeout=60) as answers:
        lines = answers.iter_lines()
        next(lines)
        wait_until(lambda: server.cache()["plan"]["queue"]["served"] == 4, 30, "all are served")
        full = server.request("POST", "/v1/chat/completions", {"messages": prompt(2, 5), "max_tokens": 1})
        assert full.status_code == 503, full.text
    wait_until(lambda: server.cache()["plan"]["queue"]["served"] == 0, 30, "nobody is served")


def test_a_request_that_waits_too_long_is_504(serve: Serve, kv: Path) -> None:
    flags = ("--parallel", "1", "--ctx-size", "2048", "--queue-timeout", "1.5")
    server = serve(smollm2(), *flags, cache=kv)
    long: dict[str, Any] = {"messages": prompt(1, 20), "max_tokens": 1900, "ignore_eos": True, "stream": True}
    with requests.post(f"{server.url}/v1/chat/completions", json=long, stream=True, timeout=60) as served:
        lines = served.iter_lines()
        next(lines)
        for stream in (False, True):
            late = server.request("POST", "/v1/chat/completions", long | {"stream": stream})
            assert late.status_code == 504 and "queue" in late.json()["error"]["message"]
        client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
        with pytest.raises(anthropic.APIStatusError) as told:
            client.messages.create(model="any", max_tokens=4, messages=[{"role": "user", "content": "Hi"}])
        assert told.value.status_code == 504
        assert next(line for line in lines if line), "the one that is served is not late, however long it takes"
    wait_until(lambda: server.cache()["plan"]["queue"]["waiting"] == 0, 30, "nobody waits")


def test_nothing_is_counted_twice_when_clients_leave(serve: Serve, kv: Path) -> None:
    server = serve(smollm2(), *SHARED, cache=kv)
    body = {"messages": prompt(1, 20), "max_tokens": 500, "ignore_eos": True}
    for _ in range(3):
        with pytest.raises(requests.RequestException):
            requests.post(f"{server.url}/v1/chat/completions", json=body, timeout=0.1)
    wait_until(lambda: server.cache()["plan"]["cells"]["free"] == CELLS, 60, "cells are given back")
    wait_until(lambda: server.cache()["plan"]["queue"]["waiting"] == 0, 60, "nobody waits")


def test_a_request_that_cannot_begin_takes_no_place_and_no_cells(serve: Serve, kv: Path) -> None:
    server = serve(toy("dense"), *SHARED, "--max-queue", "0", cache=kv)
    server.chat(prompt(1, 100))
    wrong = {"messages": prompt(1, 100), "max_tokens": 100, "grammar": "root ::= nowhere"}
    for n in (1, 2):
        for _ in range(4):
            assert server.request("POST", "/v1/chat/completions", wrong | {"n": n}).status_code == 400
    wait_until(lambda: server.cache()["plan"]["cells"]["free"] == CELLS, 30, "cells are given back")
    told = server.cache()["plan"]["queue"]
    assert (told["served"], told["waiting"]) == (0, 0)
    assert server.chat(prompt(2, 300), max_tokens=100).text


def test_who_waits_behind_one_that_leaves_goes_on(serve: Serve, kv: Path) -> None:
    server = serve(smollm2(), *SHARED, cache=kv)
    url = f"{server.url}/v1/chat/completions"
    long = {"messages": prompt(1, 100), "max_tokens": 4000, "ignore_eos": True, "stream": True}
    with requests.post(url, json=long, stream=True, timeout=60) as served:
        lines = served.iter_lines()  # without it the connection would be closed
        next(lines)
        large = {"messages": prompt(2, 450), "max_tokens": 128}
        assert not plan(server, **large)["fits"]["now"]
        with pytest.raises(requests.RequestException):
            requests.post(url, json=large, timeout=0.5)  # there is no room for it, and it leaves
        assert server.chat(prompt(3, 20), max_tokens=4).text
        assert server.cache()["plan"]["queue"]["served"] == 1 and next(line for line in lines if line), (
            "the long one goes on"
        )
