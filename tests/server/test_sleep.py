"""A server that falls asleep and wakes (--sleep-idle-seconds) loses neither state nor the user of a request."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cache_server import CacheServer, Serve, toy
from helpers import wait_until

from toys.corpus import TEXT

pytestmark = pytest.mark.server

LINES = TEXT.splitlines()
SLEEPY = ("--parallel", "2", "--ctx-size", "8192", "--sleep-idle-seconds", "1")


def is_asleep(server: CacheServer) -> bool:
    return bool(server.get("/props")["is_sleeping"])


def fall_asleep(server: CacheServer) -> None:
    wait_until(lambda: is_asleep(server), 20, "the server sleeps")


def slow_to_prepare(text: str, user: str, n_fields: int) -> dict[str, Any]:
    """With many fields, the HTTP worker takes longer to make a grammar of them than the server to fall asleep."""
    schema = {
        "type": "object",
        "properties": {f"field{n}": {"type": "string", "minLength": 1, "maxLength": 2000} for n in range(n_fields)},
    }
    return {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 1,
        "llama_user_id": user,
        "response_format": {"type": "json_schema", "json_schema": {"schema": schema}},
    }


def ask_and_watch(server: CacheServer, body: dict[str, Any]) -> float:
    """How long the answer took, while the server stayed awake."""
    server.rest()  # The time that it may be idle begins anew.
    began = time.monotonic()
    with ThreadPoolExecutor(1) as client:
        answer = client.submit(server.request, "POST", "/v1/chat/completions", body)
        while not answer.done():
            assert not is_asleep(server), f"asleep under a request, after {time.monotonic() - began:.1f} s"
            time.sleep(0.2)
    assert answer.result().status_code == 200, answer.result().text
    return time.monotonic() - began


def test_request_keeps_its_user_and_the_server_awake(serve: Serve, kv: Path) -> None:
    server = serve(toy("dense"), *SLEEPY, cache=kv)
    text = " ".join(LINES[:12])
    n_fields, took = 400, 0.0
    while took < 1.5:  # small steps: above 1,200 fields or so, the server refuses the grammar
        n_fields = n_fields * 5 // 4
        took = ask_and_watch(server, slow_to_prepare(text, "ann", n_fields))
    # What an anonymous client asks then has nothing of ann's; after a sleep it has its own.
    stranger = server.chat([{"role": "user", "content": text}])
    assert stranger.reused == 0, stranger.timings
    fall_asleep(server)
    assert server.cache().get("reason", "").startswith("closed while the server sleeps")
    own = server.chat([{"role": "user", "content": text}])
    assert own.reused >= own.prompt_size - 1 and own.source == "cold"
    assert server.cache()["enabled"] is True, "the cache has locked itself out"


def test_routes_of_a_sleeping_server_do_their_work(serve: Serve, kv: Path) -> None:
    server = serve(toy("dense"), *SLEEPY, cache=kv)
    for user, line in (("", 0), ("ann", 3), ("ben", 6)):
        server.chat([{"role": "user", "content": " ".join(LINES[line : line + 3])}], llama_user_id=user)
    fall_asleep(server)
    (conversation,) = server.conversations()
    fall_asleep(server)
    gone = server.request("DELETE", f"/cache/conversations/{conversation['hash']}")
    assert (gone.status_code, gone.json()["hash"]) == (200, conversation["hash"])
    fall_asleep(server)
    assert server.conversations() == []
    fall_asleep(server)
    assert server.request("DELETE", "/cache/users/ann").json()["bytes_freed"] > 0
    assert server.get("/cache/conversations?user_id=ann")["conversations"] == []
    assert len(server.get("/cache/conversations?user_id=ben")["conversations"]) == 1
    fall_asleep(server)
    assert server.request("GET", "/cache").status_code == 200 and is_asleep(server), "a look does not load the model"


def test_server_that_tokenises_does_not_fall_asleep(serve: Serve, kv: Path) -> None:
    """Upstream's crashes: the vocabulary goes with the model."""
    server = serve(toy("dense"), *SLEEPY, cache=kv)
    text, took = TEXT * 50, 0.0
    while took < 1.5:
        began = time.monotonic()
        assert server.request("POST", "/tokenize", {"content": text}).status_code == 200, server.said()[-2000:]
        took = time.monotonic() - began
        text *= 3 if took < 1 else 2
    assert server.process.poll() is None


def test_routes_say_that_the_cache_is_off(serve: Serve) -> None:
    server = serve(toy("dense"), "--parallel", "1", "--ctx-size", "2048")
    for method, path in (
        ("GET", "/cache/conversations"),
        ("DELETE", "/cache/conversations/0123456789abcdef"),
        ("DELETE", "/cache/users/ann"),
    ):
        answer = server.request(method, path)
        assert answer.status_code == 501 and "--cache-ssd" in answer.json()["error"]["message"], answer.text
