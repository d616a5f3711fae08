"""A server that falls asleep and wakes (--sleep-idle-seconds) loses neither state nor the user of a request."""

from __future__ import annotations

import threading
import time
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


def slow_to_prepare(text: str, user: str) -> dict[str, Any]:
    """Its schema takes the HTTP worker longer to turn into a grammar than the server takes to fall asleep."""
    schema = {
        "type": "object",
        "properties": {f"field{n}": {"type": "string", "minLength": 1, "maxLength": 400} for n in range(700)},
    }
    return {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 1,
        "llama_user_id": user,
        "response_format": {"type": "json_schema", "json_schema": {"schema": schema}},
    }


def test_request_keeps_its_user_and_the_server_awake(serve: Serve, kv: Path) -> None:
    server = serve(toy("dense"), *SLEEPY, cache=kv)
    text = " ".join(LINES[:12])
    answers: list[Any] = []
    began = time.monotonic()
    asking = threading.Thread(
        target=lambda: answers.append(server.request("POST", "/v1/chat/completions", slow_to_prepare(text, "ann")))
    )
    asking.start()
    while asking.is_alive():
        assert not is_asleep(server), f"asleep under a request, after {time.monotonic() - began:.1f} s"
        time.sleep(0.2)
    asking.join()
    assert time.monotonic() - began > 1.5, "the request was too quick to show anything"
    assert answers[0].status_code in (200, 400), answers[0].text
    # What an anonymous client asks then has nothing of ann's, before and after a sleep.
    for _ in range(2):
        stranger = server.chat([{"role": "user", "content": text}])
        assert stranger.reused == 0 or stranger.prompt_size == 0 or _ == 1, stranger.timings
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
    while took < 2.5:
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
