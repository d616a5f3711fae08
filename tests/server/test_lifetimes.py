"""Which conversation a request belongs to, and how long that is kept: as clients say it, across restarts."""

from __future__ import annotations

import json
import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import requests
from cache_server import CacheServer, Serve, Tokens, say, smollm2, toy
from helpers import wait_until
from stores import run
from xxhash import xxh3_64_intdigest

from pyrun import _kernels
from toys.corpus import TEXT

pytestmark = pytest.mark.server

LINES = TEXT.splitlines() * 4
FLAGS = ("--parallel", "2", "--ctx-size", "8192", "--cache-ssd-page-size", "32")
SYSTEM = say("system", " ".join(LINES[:12]))


def session(number: int) -> list[dict[str, str]]:
    return [SYSTEM, say("user", f"Session {number}: {LINES[number]}")]


def by_title(server: CacheServer) -> dict[str, dict[str, Any]]:
    return {c["title"]: c for c in server.conversations()}


def named(key: str) -> str:
    return f"{_kernels.conversation_of_key(key):016x}"


def ask(server: CacheServer, route: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
    messages: dict[str, Any] = {"input": LINES[30]} if route == "/v1/responses" else {"messages": session(0)[1:]}
    answer = requests.post(
        server.url + route, json=messages | {"max_tokens": 1} | body, headers=headers or {}, timeout=120
    )
    assert answer.status_code == 200, answer.text


def own_words(server: CacheServer) -> Tokens:
    """Some of the first session's, which no other has."""
    first, second = server.prompt(session(1)), server.prompt(session(2))
    at = next(i for i, (one, other) in enumerate(zip(first, second, strict=False)) if one != other)
    return first[at : at + 8]


def holds(kv: Path, tokens: Tokens) -> bool:
    """Whether any file in the folder has these tokens. Files may go meanwhile."""
    wanted = struct.pack(f"<{len(tokens)}i", *tokens)
    for folder, _, names in os.walk(kv):
        for name in names:
            with suppress(FileNotFoundError):
                if wanted in (Path(folder) / name).read_bytes():
                    return True
    return False


def age(kv: Path, seconds: int) -> None:
    """Makes all that is stored so much older, as if the machine had been off meanwhile."""
    for path in kv.rglob("*"):
        if path.suffix not in (".seg", ".anc", ".bin"):
            continue
        data = bytearray(path.read_bytes())
        times = [80]
        if path.name == "index.bin":
            (n,) = struct.unpack_from("<I", data, 176)
            times += [160, *(184 + 32 * i + 16 for i in range(n))]
        for at in times:
            struct.pack_into("<q", data, at, struct.unpack_from("<q", data, at)[0] - 1000 * seconds)
        (head,) = struct.unpack_from("<I", data, 12)
        struct.pack_into("<Q", data, 24, xxh3_64_intdigest(bytes(data[:24] + data[32:head])))
        path.write_bytes(data)


# Identity


def test_eighty_sessions_of_one_agent_are_eighty_lines(
    serve: Serve, kv: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = serve(toy("dense"), *FLAGS, "--cache-ssd-max-conversations", "80", cache=kv)
    n_system = len(server.prompt([SYSTEM], answer_follows=False))
    assert n_system > 100
    for number in range(81):
        answer = server.chat(session(number), max_tokens=1)
        assert number == 0 or answer.reused >= n_system - 2, answer.timings
    server.flush()
    listed = by_title(server)
    assert len(listed) == len(server.conversations()) == 80, "the limit counts sessions"
    oldest = session(0)[1]["content"][:80]
    assert oldest not in listed and all(title.startswith("Session ") for title in listed)
    gone = listed.pop(session(40)[1]["content"][:80].strip())
    assert server.request("DELETE", f"/cache/conversations/{gone['hash']}").status_code == 200
    server.stop()

    code, out, err = run(capsys, "cache", "ls", "--cache-ssd", kv)
    assert code == 0 and out.count("Session ") == 79 and gone["title"] not in out, out + err
    server = serve(toy("dense"), *FLAGS, cache=kv)
    for number in (1, 39, 41, 80):
        answer = server.chat(session(number), max_tokens=1)
        assert answer.reused == answer.prompt_size - 1 and answer.source == "cold", (number, answer.timings)
    again = server.chat(session(40), max_tokens=1)
    assert again.reused < again.prompt_size - 8, "nothing of the removed one's own words is left"


def test_sessions_are_told_apart_where_the_template_has_a_system_message_of_its_own(serve: Serve, kv: Path) -> None:
    server = serve(smollm2(), "--parallel", "2", "--ctx-size", "4096", cache=kv)
    system = say("system", "You know the rivers of the world.")
    for river in ("Nile", "Rhine"):
        talk = [system, say("user", f"Where is the {river}?")]
        answer = server.chat(talk, max_tokens=4)
        server.chat([*talk, say("assistant", answer.text), say("user", "And where does it end?")], max_tokens=4)
    server.flush()
    found = {(one["title"], one["turns"]) for one in server.conversations()}
    assert found == {("Where is the Nile?", 2), ("Where is the Rhine?", 2)}
    assert all("conversation" in one for one in server.get("/cache/requests")["requests"])


def test_sessions_that_begin_with_a_greeting_are_told_apart_by_the_users_first_words(serve: Serve, kv: Path) -> None:
    server = serve(smollm2(), "--parallel", "2", "--ctx-size", "4096", cache=kv)
    greeting = say("assistant", "Hello! Which river do you want to know about?")
    for river in ("Nile", "Rhine"):
        talk = [greeting, say("user", f"Where is the {river}?")]
        answer = server.chat(talk, max_tokens=4)
        server.chat([*talk, say("assistant", answer.text), say("user", "And where does it end?")], max_tokens=4)
    server.flush()
    found = {(one["title"], one["turns"]) for one in server.conversations()}
    assert found == {("Where is the Nile?", 2), ("Where is the Rhine?", 2)}


def test_turns_of_a_session_are_one_line_and_keep_its_title(serve: Serve, kv: Path) -> None:
    server = serve(toy("dense"), *FLAGS, cache=kv)
    messages = [SYSTEM, say("user", f"  What is\n\t{LINES[25]}  {LINES[26]}")]
    for _ in range(3):
        answer = server.chat(messages)
        messages += [say("assistant", answer.text), say("user", LINES[30])]
    server.flush()
    (only,) = server.conversations()
    title = f"What is {LINES[25].strip()} {LINES[26].strip()}"[:80].strip()
    assert only["turns"] == 3 and only["title"] == title


def test_the_first_name_that_is_there_counts(serve: Serve, kv: Path) -> None:
    server = serve(toy("dense"), *FLAGS, "--metadata-users", "off", cache=kv)
    claude = {
        "metadata": {"user_id": json.dumps({"device_id": "d", "account_uuid": "", "session_id": "from-metadata"})}
    }
    ours, cache_key, header = (
        {"llama_conversation_id": "ours"},
        {"prompt_cache_key": "key"},
        {"X-Conversation-Id": "head"},
    )
    cases: list[tuple[str, dict[str, Any], dict[str, str], str]] = [
        ("/v1/chat/completions", ours | cache_key, header, "ours"),
        ("/v1/chat/completions", cache_key, {"x-conversation-id": "head"}, "head"),
        ("/v1/chat/completions", cache_key, {}, "key"),
        ("/v1/responses", cache_key, {}, "key"),
        ("/completion", cache_key | {"prompt": LINES[3]}, {}, "key"),
        ("/v1/messages", ours, {}, "ours"),
        ("/v1/messages", cache_key | claude, {}, "key"),
        ("/v1/messages", claude, {}, "from-metadata"),
        ("/v1/messages", claude | {"llama_user_id": "ann"}, {}, "from-metadata"),
        ("/v1/chat/completions", claude, {}, ""),
    ]
    for route, body, headers, name in cases:
        user = "?user_id=ann" if "llama_user_id" in body else ""

        def turns(user: str = user) -> dict[str, int]:
            return {c["hash"]: c["turns"] for c in server.get(f"/cache/conversations{user}")["conversations"]}

        before = turns()
        ask(server, route, body, headers)
        server.flush()
        grown = [one for one, n in turns().items() if n != before.get(one, 0)]
        assert len(grown) == 1, (route, body)
        assert (grown[0] == named(name)) == bool(name), (route, body, grown)
    refused = server.request(
        "POST", "/v1/chat/completions", {"messages": session(0), "llama_conversation_id": 5, "max_tokens": 1}
    )
    assert refused.status_code == 400 and "llama_conversation_id" in refused.text


def test_names_decide_nothing_about_what_is_reused(serve: Serve, kv: Path) -> None:
    server = serve(toy("dense"), *FLAGS, cache=kv)
    first = server.chat(session(1), prompt_cache_key="a")
    second = server.chat(session(1), prompt_cache_key="b")
    assert second.reused == second.prompt_size - 1 and second.text == first.text
    server.flush()
    assert {c["hash"] for c in server.conversations()} == {named("a"), named("b")}
    assert server.request("DELETE", f"/cache/conversations/{named('a')}").status_code == 200
    third = server.chat(session(1), prompt_cache_key="c")
    assert third.reused == third.prompt_size - 1, "b has it still"


def test_sessions_do_not_take_each_others_slots(serve: Serve, kv: Path) -> None:
    server = serve(toy("dense"), *FLAGS, cache=kv)
    talks = [session(1), session(2)]
    for turn in range(3):
        for messages in talks:
            answer = server.chat(messages)
            assert turn == 0 or answer.source == "slot", answer.timings
            server.flush()  # A slot is spared for as much as is stored.
            messages += [say("assistant", answer.text), say("user", LINES[30 + turn])]


# Lifetimes


def test_a_ttl_comes_from_every_api_and_survives_a_restart(serve: Serve, kv: Path) -> None:
    server = serve(toy("dense"), *FLAGS, cache=kv)
    block = {"type": "text", "text": LINES[31]}
    cases: dict[str, tuple[str, dict[str, Any], str]] = {
        "ours": ("/v1/chat/completions", {"llama_cache": {"ttl": "forever"}}, "forever"),
        "responses": ("/v1/responses", {"prompt_cache_retention": "24h"}, "24h"),
        "openai": ("/v1/chat/completions", {"prompt_cache_retention": "in_memory"}, "none"),
        "system": ("/v1/messages", {"system": [block | {"cache_control": {"type": "ephemeral", "ttl": "1h"}}]}, "1h"),
        "top": ("/v1/messages", {"cache_control": {"type": "ephemeral", "ttl": "5m"}}, "5m"),
        "plain": ("/v1/messages", {"system": [block | {"cache_control": {"type": "ephemeral"}}]}, "none"),
        "both": (
            "/v1/messages",
            {"llama_cache": {"ttl": "24h"}, "cache_control": {"type": "ephemeral", "ttl": "5m"}},
            "24h",
        ),
    }
    for key, (route, body, _) in cases.items():
        ask(server, route, body | {"llama_conversation_id": key})
    server.stop()
    server = serve(toy("dense"), *FLAGS, cache=kv)
    listed = {c["hash"]: c for c in server.conversations()}
    for key, (_, _, ttl) in cases.items():
        assert (listed[named(key)]["ttl"], listed[named(key)]["protected"]) == (ttl, ttl != "none"), key
    state = server.cache()["state"]
    assert 0 < state["protected_bytes"] <= state["protected_limit"] == state["disk_limit"] // 2
    for wrong in ({"ttl": "2h"}, {"ttl": 5}, {"expire": "soon"}, "1h"):
        body = {"messages": session(0), "max_tokens": 1, "llama_cache": wrong}
        refused = server.request("POST", "/v1/chat/completions", body)
        assert refused.status_code == 400 and "llama_cache" in refused.text, refused.text


def test_keep_is_said_by_route_and_command(serve: Serve, kv: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = serve(toy("dense"), *FLAGS, cache=kv)
    server.chat(session(1))
    server.chat(session(2), llama_user_id="ann")
    server.flush()
    (mine,) = server.conversations()
    path = f"/cache/conversations/{mine['hash']}"
    assert server.post(path, {"ttl": "24h", "expire": "7d"}) == mine | {"ttl": "24h", "protected": True, "expire": "7d"}
    wrong: list[object] = [{}, {"ttl": "2h"}, {"expire": 7}, [], {"ttl": None}]
    for body in wrong:
        assert server.request("POST", path, body).status_code == 400, body
    assert server.request("POST", "/cache/conversations/0123456789abcdef", {"ttl": "1h"}).status_code == 404
    assert server.request("POST", f"{path}?user_id=ann", {"ttl": "1h"}).status_code == 404
    code, out, err = run(capsys, "cache", "keep", mine["hash"][:6], "--ttl", "forever", "--url", server.url)
    assert (code, out) == (0, f"{mine['hash']}: forever, gone after 7d  {mine['title']}\n"), err
    server.stop()
    code, out, err = run(capsys, "cache", "keep", mine["hash"], "--ttl", "none", "--expire", "none", "--cache-ssd", kv)
    assert (code, out) == (0, f"{mine['hash']}: -  {mine['title']}\n"), err


def test_a_protected_session_survives_a_small_budget(serve: Serve, kv: Path) -> None:
    flags = (*FLAGS, "--cache-ssd-max-size", "4M", "--cache-ssd-ram", "1M")
    server = serve(toy("dense"), *flags, cache=kv)
    long = [say("user", " ".join(LINES[40:80]))]
    server.chat(long, llama_conversation_id="kept", llama_cache={"ttl": "1h"})
    server.chat([say("user", " ".join(LINES[41:80]))], llama_conversation_id="not kept")
    limit = server.cache()["state"]["disk_limit"]
    number = 0
    while server.flush()["counters"]["bytes_written"] < 4 * limit:
        number += 1
        server.chat([say("user", f"{number} " + " ".join(LINES[number % 40 : number % 40 + 40]))], max_tokens=1)
    names = {c["hash"] for c in server.conversations()}
    assert named("kept") in names and named("not kept") not in names
    assert server.cache()["counters"]["evicted_segments"] > 0 and server.cache()["state"]["disk_bytes"] <= limit
    again = server.chat(long, llama_conversation_id="kept")
    assert again.reused == again.prompt_size - 1


# Expiry


def test_an_expired_conversation_is_gone_from_disk_ram_and_slots(serve: Serve, kv: Path) -> None:
    server = serve(toy("dense"), *FLAGS, "--cache-ssd-sweep", "1", cache=kv)
    staying = server.chat(session(2), max_tokens=1)
    first = server.chat(session(1), max_tokens=1, llama_conversation_id="short-lived")
    own = own_words(server)
    server.flush()
    assert holds(kv, own)
    server.post(f"/cache/conversations/{named('short-lived')}", {"expire": "1s"})
    wait_until(lambda: not holds(kv, own), 30, "it is gone from the disk")
    assert [c["hash"] == named("short-lived") for c in server.conversations()] == [False]
    assert server.flush()["counters"]["expired_conversations"] == 1
    again = server.chat(session(1), max_tokens=1)
    assert again.text == first.text and 8 < again.prompt_size - again.reused < again.prompt_size, again.timings
    other = server.chat(session(2), max_tokens=1)
    assert other.text == staying.text and other.reused == other.prompt_size - 1


def test_what_expired_while_no_server_ran_is_removed_at_the_start(serve: Serve, kv: Path) -> None:
    server = serve(toy("hybrid-moe"), *FLAGS, cache=kv)
    server.chat(session(1), max_tokens=1, llama_cache={"ttl": "forever"})
    server.chat(session(2), max_tokens=1, llama_cache={"ttl": "24h"})
    own = own_words(server)
    server.stop()
    age(kv, 30 * 24 * 3600 - 60)
    server = serve(toy("hybrid-moe"), *FLAGS, "--cache-ssd-expire", "30", cache=kv)
    listed = by_title(server)
    assert {c["expire"] for c in listed.values()} == {"30d"} and len(listed) == 2
    assert {c["ttl"]: c["protected"] for c in listed.values()} == {"forever": True, "24h": False}, "the time is over"
    used = server.chat(session(2), max_tokens=1)
    assert used.reused > 0 and used.source == "cold"
    server.stop()
    age(kv, 120)
    assert holds(kv, own)
    server = serve(toy("hybrid-moe"), *FLAGS, "--cache-ssd-expire", "30", cache=kv)
    (left,) = server.conversations()
    assert left["ttl"] == "24h" and left["protected"], "it was used, which counts"
    assert not holds(kv, own) and server.cache()["damaged"]["bad_checksum"] == 0
