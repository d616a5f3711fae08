"""The launcher, the real server and the SSD cache: what a restart keeps, and whether everyone counts the same."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import requests
from backend import BACKEND
from helpers import ROOT, wait_until
from server_fixtures import Server, StartServer

import toys
from pyrun.cache.look import count_conversations
from pyrun.cache.owners import fingerprints_of

pytestmark = pytest.mark.server

# What the CLI says of a conversation and the server before it stopped may differ in, by nature.
OF_THE_MOMENT = {
    "tier": "nothing is in RAM once the server has stopped",
    "user": "the server lists no user's conversations, and says of none that it has no user",
}
SYSTEM = "You answer in one sentence. " + " ".join(f"Rule {i}: be brief about topic {i * 7}." for i in range(24))


@pytest.fixture(scope="module")
def dense() -> Path:
    return toys.ensure("dense", ROOT / ".cache" / "toys")


def chat(server: Server, messages: list[dict[str, str]]) -> Any:
    answer = server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 16, "temperature": 0}).json()
    return {"text": answer["choices"][0]["message"]["content"], "timings": answer["timings"]}


def first_turn(server: Server) -> list[dict[str, str]]:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Which river flows through Paris?"}]
    answer = chat(server, messages)
    assert answer["timings"]["cache_miss"]["reason"] == "nothing_stored"
    assert answer["timings"]["prompt_n"] > 256  # a page
    return [*messages, {"role": "assistant", "content": answer["text"]}, {"role": "user", "content": "And London?"}]


def cli(*arguments: str | Path, key: str | None = None) -> Any:
    environment = os.environ | ({"LLAMA_API_KEY": key} if key else {})
    command = [ROOT / "llama-run", "cache", *arguments, "--json"]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def ask(server: Server, path: str) -> Any:
    return requests.get(f"{server.url}{path}", timeout=10).json()


def test_conversation_outlives_ctrl_c(start_server: StartServer, tmp_path: Path, dense: Path) -> None:
    flags = ("--cache-ssd", str(tmp_path / "kv"), "--ctx", "4096")
    model = None if BACKEND == "cpu" else dense  # the built-in one, where it does not take minutes
    server = start_server(model, *flags)
    wait_until(lambda: "kv, 0 conversations, " in server.said(), 60, "the launcher says it", server.said)
    messages = first_turn(server)
    assert server.stop() == 0

    again = start_server(model, *flags)
    wait_until(lambda: "kv, 1 conversation, " in again.said(), 60, "the launcher says it", again.said)
    restored = chat(again, messages)
    assert restored["timings"]["cache_source"] == "cold"
    assert restored["timings"]["cache_n"] > 256 and restored["timings"]["prompt_n"] < 40
    assert again.stop() == 0

    never_stopped = start_server(model, "--ctx", "4096")
    assert first_turn(never_stopped) == messages
    kept = chat(never_stopped, messages)
    assert kept["timings"]["cache_source"] == "slot"
    assert (restored["text"], restored["timings"]["cache_n"]) == (kept["text"], kept["timings"]["cache_n"])
    never_stopped.stop()


def test_turned_off_cache_writes_nothing(start_server: StartServer, dense: Path) -> None:
    server = start_server(dense, "--no-cache-ssd", "--ctx", "2048")
    wait_until(lambda: "cache: off: not asked for" in server.said(), 60, "the launcher says it", server.said)
    answer = server.post("/completion", {"prompt": "Hello!", "n_predict": 2}).json()
    assert "cache_source" not in answer["timings"]
    assert server.stop() == 0 and not (server.output.parent / "kv-cache").exists()


def test_key_of_the_server_does_not_keep_the_launcher_out(start_server: StartServer, dense: Path) -> None:
    server = start_server(dense, "--ctx", "2048", "--", "--api-key", "secret")
    wait_until(lambda: "kv-cache, 0 conversations, " in server.said(), 60, "the launcher says it", server.said)
    assert cli("ls", "--url", server.url, key="secret")["models"][0]["conversations"] == []
    refused = subprocess.run([ROOT / "llama-run", "cache", "ls", "--url", server.url], capture_output=True, text=True)
    assert refused.returncode == 1 and "set LLAMA_API_KEY" in refused.stderr
    assert server.stop() == 0


def test_second_server_says_why_it_has_no_cache(start_server: StartServer, dense: Path, tmp_path: Path) -> None:
    flags = ("--cache-ssd", str(tmp_path), "--ctx", "2048")
    first = start_server(dense, *flags)
    second = start_server(dense, *flags)
    expected = f"cache: off: llama-server (pid {first.pid}) has this model's state in {tmp_path} open"
    wait_until(lambda: expected in second.said(), 60, "the launcher says it", second.said)
    assert second.post("/completion", {"prompt": "Hello!", "n_predict": 2}).status_code == 200
    assert second.stop() == 0 and first.stop() == 0


def test_cli_and_server_count_alike(start_server: StartServer, dense: Path, tmp_path: Path) -> None:
    server = start_server(dense, "--cache-ssd", str(tmp_path), "--ctx", "4096", "--", "--parallel", "1")
    # Two conversations; the second drives the first out of the only slot, so that it is restored.
    for system, question in ((2 * SYSTEM, "Which river?"), ("Be brief.", "Why?"), (2 * SYSTEM, "Which river?")):
        chat(server, [{"role": "system", "content": system}, {"role": "user", "content": question}])
        assert server.post("/cache/flush", {}).json()["state"]["queued"] == 0
    told, listed = ask(server, "/cache"), ask(server, "/cache/conversations")["conversations"]
    running_ls, running_stats = cli("ls", "--url", server.url), cli("stats", "--url", server.url)
    assert server.stop() == 0
    stopped_ls, stopped_stats = cli("ls", "--cache-ssd", tmp_path), cli("stats", "--cache-ssd", tmp_path)

    # Conversations: last_used_ms and hits, which index.bin gets when the store is closed, are the same too.
    assert len(listed) == 2 and any(one["hits"] for one in listed)
    for conversations in (listed, running_ls["models"][0]["conversations"], stopped_ls["models"][0]["conversations"]):
        for one in conversations:
            for name in OF_THE_MOMENT:
                one.pop(name, None)
    by_hash = sorted(listed, key=lambda one: str(one["hash"]))
    for found in (running_ls, stopped_ls):
        assert sorted(found["models"][0]["conversations"], key=lambda one: str(one["hash"])) == by_hash

    # The launcher has noted whose they are.
    assert fingerprints_of(tmp_path, dense) == [told["fingerprint"]]
    assert count_conversations(tmp_path, [told["fingerprint"]]) == 2

    # Numbers: what the server measures as it goes is what a fresh look finds.
    state, model = told["state"], stopped_stats["models"][0]
    assert model["fingerprint"] == told["fingerprint"]
    names = {"conversations": "conversations", "turns": "checkpoints", "anchors": "anchors", "pages": "pages"}
    assert {name: model[name] for name in names} == {name: state[theirs] for name, theirs in names.items()}
    assert model["page_files"] == state["segments"]
    assert model["damaged"] == {} and not any(told["damaged"].values())
    # Bytes: closing writes index.bin of each conversation, and beside the model what was written, what was saved, how
    # fast it was and the key of its owner, which are counted in blocks of 4 KiB.
    new_files = (state["conversations"] + 4) * 4096
    assert state["disk_bytes"] <= stopped_stats["bytes"] <= state["disk_bytes"] + new_files
    assert running_stats["bytes"] == state["disk_bytes"]
    # Restores of any kind only a running server counts.
    assert running_stats["models"][0] | {"bytes": model["bytes"], "restores": None} == model


def test_state_says_what_computed_it(start_server: StartServer, dense: Path, tmp_path: Path) -> None:
    server = start_server(dense, "--cache-ssd", str(tmp_path), "--ctx", "2048")
    first_turn(server)
    server.post("/cache/flush", {})
    listed = ask(server, "/cache/conversations")["conversations"]
    assert [one["backend"].lower() for one in listed] == [BACKEND]
    assert server.stop() == 0
