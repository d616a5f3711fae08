"""What happens now, what was saved, and where the bytes are: for those who ask, and for those who listen."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
from cache_server import CacheServer, Serve, say, starter, toy
from helpers import wait_until

from pyrun.cache.remote import server_stats
from pyrun.server.live import Event, events, parse_events

pytestmark = pytest.mark.server

FLAGS = ("--parallel", "2", "--ctx-size", "32768", "--metrics")
FIRST = [say("system", "You know the rivers of the world. " * 30), say("user", "Which one is the longest?")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CacheServer]:
    with starter(tmp_path_factory) as serve:
        yield serve(toy("dense"), *FLAGS, cache=tmp_path_factory.mktemp("kv") / "kv")


def next_of(name: str, heard: Iterator[Event]) -> dict[str, Any]:
    return next(event.data for event in heard if event.name == name)


def test_a_listener_hears_of_slots_and_requests(server: CacheServer) -> None:
    heard = events(server.url)
    assert next_of("hello", heard)["started_ms"] > 0
    idle = next_of("slots", heard)
    assert [slot["phase"] for slot in idle["slots"]] == ["idle", "idle"] and idle["waiting"] == []
    answer = server.chat(FIRST)
    done = next_of("request", heard)
    assert (done["tokens_reused"], done["tokens_evaluated"]) == (answer.reused, answer.prompt_size - answer.reused)
    assert done == server.get("/cache/requests")["requests"][0]
    server.flush()  # It is listed once it is written.
    assert done["conversation"] in [one["hash"] for one in server.conversations()]
    assert 0 <= done["queue_ms"] <= done["first_token_ms"]
    server.chat([*FIRST, say("assistant", answer.text), say("user", "And the next one?")])
    planned = next_of("request", heard)
    assert planned["planned_ms"] > 0, "by what the first one took"


def test_a_busy_slot_says_how_far_it_is(server: CacheServer) -> None:
    def busy() -> list[dict[str, Any]]:
        return [slot for slot in server.get("/cache/slots")["slots"] if slot["phase"] != "idle"]

    body = {"prompt": "The Nile", "n_predict": 15000, "ignore_eos": True, "stream": True}
    with requests.post(f"{server.url}/completion", json=body, stream=True, timeout=60) as answer:
        lines = answer.iter_lines()
        told = next(slots for _ in lines if (slots := busy()) and slots[0].get("tokens_answered", 0) >= 2)[0]
        assert told["phase"] == "answering" and told["tokens_per_s"] > 0
        assert told["tokens"] == told["tokens_reused"] + told["tokens_evaluated"]
    wait_until(lambda: not busy(), 30, "whoever left is served no more")


def test_users_hear_of_their_own_only(server: CacheServer) -> None:
    with requests.get(f"{server.url}/cache/events?user_id=bob", stream=True, timeout=30) as bob:
        heard = parse_events(line.decode() for line in bob.iter_lines(chunk_size=None))
        next_of("slots", heard)
        server.chat(FIRST, llama_user_id="alice")
        server.chat(FIRST, llama_user_id="bob", max_tokens=2)
        assert next_of("request", heard)["tokens_answered"] == 2, "not alice's"
    server.flush()
    assert server.get("/cache/saved?user_id=alice")["ever"]["requests"] == 1
    assert server.get("/cache/saved?user_id=carol")["ever"]["requests"] == 0


def test_a_stalled_listener_delays_nobody(server: CacheServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as stalled:
        stalled.sendall(b"GET /cache/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        heard = events(server.url)
        next_of("slots", heard)
        for _ in range(3):
            server.chat(FIRST, max_tokens=1)
            assert next_of("request", heard)["tokens_answered"] == 1


def test_totals_go_on_after_a_restart_and_agree(serve: Serve, tmp_path: Path) -> None:
    first = serve(toy("dense"), *FLAGS, cache=tmp_path / "kv")
    for n in range(3):
        first.chat([*FIRST, say("assistant", "The Nile."), say("user", f"And number {n}?")])
    first.flush()  # an answer is there a moment before its request is counted
    before = first.get("/cache/saved")["ever"]
    assert before["requests"] == 3
    first.stop()
    second = serve(toy("dense"), *FLAGS, cache=tmp_path / "kv")
    second.chat([*FIRST, say("assistant", "The Nile."), say("user", "And number 9?")])
    told, after, stats = second.flush(), second.get("/cache/saved"), server_stats(second.url)
    assert after["ever"]["requests"] == 4 == after["days"][-1]["requests"]
    assert told["requests"]["finished"] == 1, "since the start"
    for name in ("tokens_reused", "tokens_evaluated"):
        assert after["ever"][name] - before[name] == told["requests"][name]
    assert after["ever"]["bytes_written"] > before["bytes_written"] > 0
    metrics = second.request("GET", "/metrics").text
    for name, value in {
        "requests_total": told["requests"]["finished"],
        "tokens_reused_total": told["requests"]["tokens_reused"],
        "tokens_evaluated_total": told["requests"]["tokens_evaluated"],
        "disk_bytes": told["state"]["disk_bytes"],
        "conversations": told["state"]["conversations"],
        "bytes_written_total": told["counters"]["bytes_written"],
    }.items():
        assert f"\nllamacpp:cache_{name} {value:.6f}\n" in metrics, name
    (model,) = stats.stored.models
    assert (model.conversations, model.restores) == (told["state"]["conversations"], told["counters"]["loads"])
    assert len(second.conversations()) == told["state"]["conversations"]
    disk = second.get("/cache/disk")
    assert [one["served"] for one in disk["models"]] == [True]
    assert disk["conversations"] == sum(one["bytes_own"] for one in second.conversations())
    assert disk["models"][0]["bytes"] == disk["conversations"] + disk["shared"] + disk["damaged"]


def test_removing_a_user_removes_the_users_totals(server: CacheServer) -> None:
    server.chat(FIRST, llama_user_id="dora")
    server.flush()
    assert server.get("/cache/saved?user_id=dora")["ever"]["requests"] == 1
    assert server.request("DELETE", "/cache/users/dora").status_code == 200
    assert server.get("/cache/saved?user_id=dora")["ever"]["requests"] == 0


def test_without_a_cache_slots_are_shown_all_the_same(serve: Serve) -> None:
    server = serve(toy("dense"), "--parallel", "1", "--ctx-size", "512")
    assert server.get("/cache/slots") == {"slots": [{"id": 0, "phase": "idle"}], "waiting": []}
    assert server.get("/cache/saved")["enabled"] is False
    assert requests.get(f"{server.url}/dashboard", timeout=30).status_code == 200


def test_the_page_needs_no_key_and_everything_else_does(serve: Serve, tmp_path: Path) -> None:
    server = serve(toy("dense"), "--parallel", "1", "--ctx-size", "512", cache=tmp_path / "kv", api_key="secret")
    for path in ("/dashboard", "/dashboard.css", "/dashboard.js"):
        answer = requests.get(server.url + path, timeout=30)
        policy = answer.headers["Content-Security-Policy"]
        assert answer.status_code == 200 and "default-src 'none'" in policy and "unsafe" not in policy
    for path in ("/cache/slots", "/cache/events", "/cache/saved", "/cache/disk"):
        assert requests.get(server.url + path, timeout=30).status_code == 401, path
    page = requests.get(f"{server.url}/dashboard", timeout=30).text
    assert "<style" not in page and "style=" not in page and "http://" not in page and "https://" not in page
    assert page.count("<script") == 1 and "onclick" not in page, "one script, of its own file"


def test_stopping_ends_listeners(serve: Serve, tmp_path: Path) -> None:
    server = serve(toy("dense"), "--parallel", "1", "--ctx-size", "512", cache=tmp_path / "kv")
    heard = events(server.url)
    next_of("slots", heard)
    server.stop()
    assert [event.name for event in heard if event.name != "slots"] == []


def test_memory_stays_bounded_with_fifty_listeners(server: CacheServer) -> None:
    process = psutil.Process(server.process.pid)
    before = process.memory_info().rss
    heard = [events(server.url) for _ in range(50)]
    for one in heard:
        next_of("slots", one)
    for _ in range(5):
        server.chat(FIRST, max_tokens=1)
    for one in heard:
        assert next_of("request", one)["tokens_answered"] == 1
    assert process.memory_info().rss - before < 64 << 20
    for one in heard:
        one.close()  # type: ignore[attr-defined]
