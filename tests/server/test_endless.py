"""Chats that outgrow the context: what is left out, what it costs, and that it is found again."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import requests
from cache_server import CacheServer, Serve, say, smollm2, toy
from helpers import ROOT, children_told, wait_until

from pyrun.chat.mcp_servers import McpServers
from pyrun.memory.intake import take_in
from pyrun.memory.recall import UserMemory
from pyrun.memory.store import Memory
from pyrun.tools.setup import IncludedServer
from toys.corpus import TEXT

pytestmark = pytest.mark.server

LINES = TEXT.splitlines()
SMALL = ("--parallel", "1", "--ctx-size", "1024")
EVICT = ("--context-overflow", "evict")
NOTE = "[Earlier messages of this conversation were left out here."

Chat = list[dict[str, Any]]


def talk(n_exchanges: int, system: str = "You are brief.") -> Chat:
    """Exchanges that can be told apart, some forty tokens each."""
    messages = [say("system", system)]
    for i in range(n_exchanges):
        messages.append(say("user", f"Question {i}: {LINES[i % len(LINES)][:60]}?"))
        messages.append(say("assistant", f"Answer {i}: {LINES[(i + 3) % len(LINES)][:60]}."))
    return messages


def asks(n_exchanges: int) -> Chat:
    return [*talk(n_exchanges), say("user", f"Question {n_exchanges}: and now?")]


def rendered(server: CacheServer, messages: Chat, **options: Any) -> str:
    return str(server.post("/apply-template", {"messages": messages, **options})["prompt"])


def questions(prompt: str) -> list[int]:
    return [int(number) for number in re.findall(r"Question (\d+):", prompt)]


def test_a_chat_that_no_longer_fits_goes_on_without_its_oldest_exchanges(serve: Serve) -> None:
    server = serve(toy("dense"), *SMALL)
    history = asks(60)
    body = {"messages": history, "max_tokens": 4}
    refused = server.request("POST", "/v1/chat/completions", body)
    assert refused.status_code == 400 and "exceed" in refused.text, "this is upstream's answer, and the default"

    answer = server.post("/v1/chat/completions", body | {"llama_context_overflow": "evict"})
    prompt = rendered(server, history, llama_context_overflow="evict")
    kept = questions(prompt)
    assert kept == list(range(kept[0], 61)) and kept[0] > 0, "the newest stay, in order"
    assert prompt.count("You are brief.") == 1 and prompt.count(NOTE) == 1
    assert prompt.index("You are brief.") < prompt.index(NOTE) < prompt.index(f"Question {kept[0]}:")
    dropped = answer["timings"]["context_dropped"]
    assert dropped["messages"] == 2 * kept[0] and dropped["tokens"] > 0

    with_typo = server.request("POST", "/v1/chat/completions", body | {"llama_context_overflow": "shift"})
    assert with_typo.status_code == 400 and '"evict"' in with_typo.json()["error"]["message"]


def test_what_was_left_out_is_told_also_after_a_restart(serve: Serve, tmp_path: Path) -> None:
    told = []
    for _ in range(2):
        server = serve(toy("dense"), *SMALL, *EVICT, cache=tmp_path / "kv")
        answer = server.chat(asks(60))
        told.append((answer.source, answer.timings["context_dropped"]))
        server.stop()
    assert [source for source, _ in told] == ["none", "cold"] and told[0][1] == told[1][1]


def test_what_fits_is_left_alone(serve: Serve) -> None:
    server = serve(toy("dense"), *SMALL, *EVICT)
    history = asks(3)
    assert rendered(server, history) == rendered(server, history, llama_context_overflow="error")
    assert "context_dropped" not in server.chat(history).timings


@pytest.mark.parametrize("name", ["dense", "hybrid-mamba"])
def test_answers_are_those_of_a_fresh_server_given_what_was_kept(serve: Serve, kv: Path, name: str) -> None:
    """Turn after turn, over several cuts, with the cache and what was evaluated ahead in between."""
    server = serve(toy(name), *SMALL, *EVICT, cache=kv)
    fresh = serve(toy(name), *SMALL)
    history = talk(12)
    firsts = set()
    for turn in range(12, 30):
        history.append(say("user", f"Question {turn}: {LINES[turn % len(LINES)][:80]}?"))
        answer = server.chat(history, max_tokens=4)
        if turn % 3 == 0:
            prompt = rendered(server, history)
            firsts.add(questions(prompt)[0])
            same = fresh.complete(fresh.tokens(prompt), 4, cache_prompt=False)
            assert answer.text.split() == same.text.split() or answer.apart(same) < 0.1, turn
        history.append(say("assistant", f"Answer {turn}: {answer.text}"))
    assert len(firsts) > 1, "it was cut more than once"
    assert server.cache()["overflow"]["requests_cut"] > 0


def test_a_cut_finds_its_prefix_evaluated_ahead(serve: Serve, kv: Path) -> None:
    server = serve(toy("dense"), *SMALL, *EVICT, cache=kv)
    history = talk(8)
    cuts = []
    before = 0
    for turn in range(8, 24):
        history.append(say("user", f"Question {turn}: {LINES[turn % len(LINES)][:80]}?"))
        answer = server.chat(history, max_tokens=4)
        dropped = answer.timings.get("context_dropped", {}).get("messages", 0)
        if dropped > before:
            cuts.append((answer.reused, answer.prompt_size))
            before = dropped
        history.append(say("assistant", answer.text))
        settle(server)
    assert cuts, "it was cut"
    for reused, size in cuts:
        assert reused > size - 150, cuts


def until_planned(server: CacheServer) -> Chat:
    """A chat whose next cut is near: with its last request, what that will keep is evaluated ahead."""
    history = talk(8)
    for turn in range(8, 24):
        history.append(say("user", f"Question {turn}: {LINES[turn % len(LINES)][:80]}?"))
        before = server.cache()["overflow"]["tokens_ahead"]
        answer = server.chat(history, max_tokens=4)
        history.append(say("assistant", answer.text))
        settle(server)
        if server.cache()["overflow"]["tokens_ahead"] > before:
            return history
    raise AssertionError("nothing was evaluated ahead")


def test_what_was_planned_ahead_for_a_chat_goes_with_it(serve: Serve, kv: Path) -> None:
    server = serve(smollm2(), "--parallel", "2", "--ctx-size", "2048", "--no-kv-unified", *EVICT, cache=kv)
    history = until_planned(server)
    ahead = server.cache()["overflow"]["tokens_ahead"]
    (chat,) = server.conversations()
    long = {"prompt": "The Nile", "n_predict": 900, "ignore_eos": True, "stream": True}
    with requests.post(f"{server.url}/completion", json=long, stream=True, timeout=60) as busy:
        lines = busy.iter_lines()  # It is kept: without it the connection would end.
        next(lines)  # Nothing is evaluated ahead while somebody is served.
        server.chat([*history, say("user", "And then?")], max_tokens=2)
        assert server.request("DELETE", f"/cache/conversations/{chat['hash']}").status_code == 200
        assert any(slot["is_processing"] for slot in server.get("/slots")), "it was busy all the while"
    settle(server)
    assert chat["hash"] not in [one["hash"] for one in server.conversations()]
    assert server.cache()["overflow"]["tokens_ahead"] == ahead


def test_a_server_that_evaluates_ahead_falls_asleep_behind_it(serve: Serve, kv: Path) -> None:
    server = serve(toy("dense"), *SMALL, *EVICT, "--sleep-idle-seconds", "3", cache=kv)
    history = until_planned(server)
    for words in ("And then?", "And now?"):
        wait_until(lambda: bool(server.get("/props")["is_sleeping"]), 30, "it sleeps")
        assert server.chat([*history, say("user", words)], max_tokens=2).reused > 0


def settle(server: CacheServer) -> None:
    """Waits until nothing is evaluated ahead any more, and what was is counted and written."""
    wait_until(lambda: server.cache()["overflow"]["pending_ahead"] == 0, 30, "quiet")
    server.rest()
    server.flush()


def test_responses_and_messages_of_anthropic_are_cut_as_well(serve: Serve) -> None:
    server = serve(toy("dense"), *SMALL, *EVICT)
    history = asks(60)
    wanted = server.request("POST", "/v1/chat/completions", {"messages": history, "max_tokens": 4}).headers
    n_dropped = wanted["X-Llama-Dropped-Messages"]
    assert int(n_dropped) > 0 and int(wanted["X-Llama-Dropped-Tokens"]) > 0

    items = [
        {"type": "message", **m, "content": [{"type": "output_text", "text": m["content"]}]}
        if m["role"] == "assistant"
        else m
        for m in history
    ]
    responses = server.request("POST", "/v1/responses", {"input": items, "max_output_tokens": 4})
    assert responses.status_code == 200, responses.text
    assert responses.headers["X-Llama-Dropped-Messages"] == n_dropped

    body = {"model": "x", "max_tokens": 4, "system": history[0]["content"], "messages": history[1:]}
    messages = server.request("POST", "/v1/messages", body)
    assert messages.status_code == 200 and messages.headers["X-Llama-Dropped-Messages"] == n_dropped
    refused = server.request("POST", "/v1/messages", body | {"llama_context_overflow": "error"})
    assert refused.status_code == 400


def test_a_call_and_its_result_stay_together(serve: Serve) -> None:
    server = serve(toy("dense"), *SMALL, *EVICT)
    history = talk(0)
    for i in range(40):
        call = {"id": f"call{i}", "type": "function", "function": {"name": "look", "arguments": f'{{"n": {i}}}'}}
        history.append(say("user", f"Question {i}: {LINES[i % len(LINES)][:40]}?"))
        history.append({"role": "assistant", "content": None, "tool_calls": [call]})
        history.append({"role": "tool", "tool_call_id": f"call{i}", "content": f"Result {i}"})
        history.append(say("assistant", f"Answer {i}."))
    history.append(say("user", "Question 40: well?"))
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
    prompt = rendered(server, history, tools=tools)
    kept = questions(prompt)
    assert 0 < kept[0] < 40
    assert [int(n) for n in re.findall(r"Result (\d+)", prompt)] == kept[:-1]


def test_what_leaves_a_chat_is_found_by_the_tool_server_and_is_there_once_after_kills(
    serve: Serve, tmp_path: Path
) -> None:
    """A fact of turn 3, dropped by turn 40, is found in turn 50; the server and the tools die in between."""
    folder = tmp_path / "memory"
    flags = (*SMALL, *EVICT, "--context-spool", str(folder / "spool"))
    tool_server = IncludedServer(
        sys.executable,
        ("-m", "pyrun", "tools", "--root", str(tmp_path), "--memory", str(folder)),
        {"PYTHONPATH": str(ROOT)},
    )
    history = talk(38)
    history[5] = say("user", "Question 2: my bicycle is called Rosinante.")
    n_dropped = 0
    for turns in (range(39, 43), range(43, 47), range(47, 50)):
        server = serve(toy("dense"), *flags)
        for turn in turns:
            history.append(say("user", f"Question {turn - 1}: {LINES[turn % len(LINES)][:80]}?"))
            answer = server.chat(history, max_tokens=4)
            history.append(say("assistant", f"Answer {turn - 1}: {answer.text}"))
            n_dropped = answer.timings["context_dropped"]["messages"]
            assert n_dropped > 6, "the fact has left the chat"
        # Its thread has a moment, but what it has not written is not lost either: the next request brings it again.
        server.kill()
        with McpServers({"tools": tool_server}, tmp_path / "mcp.log", start_seconds=120) as servers:
            search = next(tool for tool in servers.tools if tool.name == "search_memory")
            servers.call(search, {"query": "bicycle"}, threading.Event())
            [process] = children_told("tools")
            process.kill()
    server = serve(toy("dense"), *flags)
    server.chat(history[:-1], max_tokens=1)
    with McpServers({"tools": tool_server}, tmp_path / "mcp.log", start_seconds=120) as servers:
        search = next(tool for tool in servers.tools if tool.name == "search_memory")
        found = servers.call(search, {"query": "what is the name of my bicycle"}, threading.Event())
    assert found.count("Rosinante") == 1
    history.append(say("user", f"Question 49: {found}"))
    assert "Rosinante" not in rendered(server, history[:-2]) and "Rosinante" in rendered(server, history)
    n_dropped = server.chat(history, max_tokens=1).timings["context_dropped"]["messages"]
    server.stop()
    with Memory(folder) as memory:
        assert take_in(memory).n_damaged == 0
        assert UserMemory(memory, "").counts()["message"] == n_dropped
        assert take_in(memory).n_new == 0


READER = """
import sys
from pathlib import Path
from pyrun.memory.intake import take_in
from pyrun.memory.store import Memory
while True:
    with Memory(Path(sys.argv[1])) as memory:
        take_in(memory)
"""


def n_archived(folder: Path) -> int:
    with Memory(folder) as memory:
        return UserMemory(memory, "").counts()["message"]


def test_over_1000_messages_that_left_a_chat_are_there_once_whatever_is_killed(serve: Serve, tmp_path: Path) -> None:
    """The server is killed while it may still write the last of them, and so is what takes them in."""
    folder = tmp_path / "memory"
    flags = (*SMALL, *EVICT, "--context-spool", str(folder / "spool"))
    chance = random.Random(23)
    n_taken = [0]
    for n_exchanges in range(60, 541, 60):
        server = serve(toy("dense"), *flags)
        with subprocess.Popen([sys.executable, "-c", READER, str(folder)], cwd=ROOT) as reader:
            server.chat(asks(n_exchanges), max_tokens=1)
            if n_exchanges % 120 == 0:  # Else a slow machine could kill each one before it has taken anything in.
                wait_until(lambda: n_archived(folder) > n_taken[-1], 60, "some of them are taken in")
            time.sleep(chance.choice([0, 0.02, 0.5]))
            server.kill()
            time.sleep(chance.choice([0, 0.1, 0.3]))
            assert reader.poll() is None, "it takes in until it is killed"
            reader.kill()
        n_taken.append(n_archived(folder))
    assert len(set(n_taken)) > 3, f"the readers that were killed have taken something in, each a part: {n_taken}"
    history = asks(550)
    server = serve(toy("dense"), *flags)
    n_dropped = server.chat(history, max_tokens=1).timings["context_dropped"]["messages"]
    server.stop()
    assert n_dropped > 1000
    with Memory(folder) as memory:
        assert take_in(memory).n_damaged == 0
        ((chat, *_),) = UserMemory(memory, "").conversations()
        left = UserMemory(memory, "").show(chat, limit=2 * n_dropped)
        assert [one.text for one in left] == [message["content"] for message in history[1 : 1 + n_dropped]]


def test_what_leaves_the_chats_of_two_users_is_apart(serve: Serve, tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    server = serve(toy("dense"), *SMALL, *EVICT, "--context-spool", str(folder / "spool"))
    for user, secret in (("ann", "Rosinante"), ("ben", "Bucephalus")):
        history = [say("user", f"My horse is called {secret}."), say("assistant", "Fine."), *asks(60)[1:]]
        server.chat(history, max_tokens=1, llama_user_id=user)
    server.stop()
    with Memory(folder) as memory:
        take_in(memory)
        for user, own in (("ann", "Rosinante"), ("ben", "Bucephalus"), ("", None)):
            texts = " ".join(one.entry.text for one in UserMemory(memory, user).search("My horse is called"))
            assert [name for name in ("Rosinante", "Bucephalus") if name in texts] == ([own] if own else [])
