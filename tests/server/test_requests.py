"""The last requests as the server tells them: what was reused, where a prompt parted, and what would help."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cache_server import CacheServer, Serve, say, toy
from click.testing import CliRunner

from pyrun.cli.main import cli
from toys.corpus import TEXT

pytestmark = pytest.mark.server

LINES = TEXT.splitlines()
FLAGS = ("--parallel", "1", "--ctx-size", "8192", "--jinja")
SYSTEM = " ".join(LINES[:8])


@pytest.fixture
def server(serve: Serve, tmp_path: Path) -> CacheServer:
    return serve(toy("dense"), *FLAGS, cache=tmp_path / "kv")


def ask(server: CacheServer, system: str, question: str, **options: Any) -> None:
    server.chat([say("system", system), say("user", question)], max_tokens=1, **options)


def requests_of(server: CacheServer, user: str = "") -> list[dict[str, Any]]:
    server.flush()  # an answer is there a moment before its request has ended
    return list(server.get(f"/cache/requests?user_id={user}")["requests"])


@pytest.mark.parametrize(
    ("before", "first", "second", "advice"),
    [
        ("Today's date is ", "2026-11-16.", "2027-12-17.", "a date or time"),
        ("x-anthropic-billing-header: cc_version=", "2.1.c8e;", "3.0.199;", "CLAUDE_CODE_ATTRIBUTION_HEADER=0"),
        ("Session ", "5fd14ff0a496fecf89d82a36", "00aa4ff0a496fecf89d82a36", "made anew for each conversation"),
        ("Working directory: ", "/home/ann/a", "/home/ben/b", "the folder"),
        ("Some words that ", "change", "differ", "compare the words"),
    ],
)
def test_prompt_that_parts_early_is_told_with_words(
    server: CacheServer, before: str, first: str, second: str, advice: str
) -> None:
    ask(server, f"{before}{first} {SYSTEM}", "Hello")
    ask(server, f"{before}{second} {SYSTEM}", "Hello")
    newest, oldest = requests_of(server)
    assert oldest["cache_miss"]["reason"] == "nothing_stored" and oldest["tokens_reused"] == 0
    assert newest["cache_miss"]["reason"] == "parted" and newest["parted"]["early"] is True
    assert advice in newest["parted"]["advice"] and " | " in newest["parted"]["words"]
    assert newest["tokens_answered"] == 1 and newest["at_ms"] >= oldest["at_ms"]

    shown = CliRunner().invoke(cli, ["cache", "why", "--url", server.url], catch_exceptions=False)
    assert shown.exit_code == 0 and advice in shown.output and "parted at token" in shown.output
    told = CliRunner().invoke(cli, ["cache", "why", "--url", server.url, "--json", "-n", "1"], catch_exceptions=False)
    (only,) = json.loads(told.output)
    assert (only["reused"], only["advice"]) == (newest["tokens_reused"], newest["parted"]["advice"])


def test_conversation_that_parts_where_the_user_speaks_gets_no_advice(server: CacheServer) -> None:
    for question in "What is the capital of France?", "How deep is the sea on 2026-11-16?":
        ask(server, SYSTEM, question)
    newest, _ = requests_of(server)
    assert newest["cache_miss"]["reason"] == "parted" and newest["parted"]["early"] is False
    assert newest["parted"]["advice"] == ""


def test_words_stay_with_their_user(server: CacheServer) -> None:
    for user in "ann", "ben", "":
        ask(server, f"{user} said {SYSTEM}", "Hello", llama_user_id=user)
    assert [len(requests_of(server, user)) for user in ("ann", "ben", "", "eve")] == [1, 1, 1, 0]
    assert server.request("DELETE", "/cache/users/ann").status_code == 200
    assert [len(requests_of(server, user)) for user in ("ann", "ben", "")] == [0, 1, 1]


def test_words_of_a_removed_conversation_are_not_told(server: CacheServer) -> None:
    for question in "What is hidden here?", "What else is there?":
        ask(server, SYSTEM, question)
    assert any("parted" in entry for entry in requests_of(server))
    for conversation in server.conversations():
        assert server.request("DELETE", f"/cache/conversations/{conversation['hash']}").status_code == 200
    assert not any("parted" in entry for entry in requests_of(server))


def test_only_the_last_are_kept(server: CacheServer) -> None:
    for n in range(260):
        server.complete([n + 1, 5, 6], n_predict=1)
    assert len(requests_of(server)) == 256


def tool(name: str, **parameters: object) -> dict[str, Any]:
    function = {"name": name, "description": name, "parameters": {"type": "object", "properties": parameters}}
    return {"type": "function", "function": function}


def test_tools_in_another_order_are_counted_and_sorted_when_told(serve: Serve, tmp_path: Path) -> None:
    one, two = tool("read", path={"type": "string"}), tool("write", path={"type": "string"}, text={"type": "string"})
    turned = {"type": "function", "function": dict(reversed(two["function"].items()))}
    orders = [[one, two], [two, one], [one, turned]]
    for flags, made_stable in ((), []), (("--stable-tools",), ["tool-order"]):
        server = serve(toy("dense"), *FLAGS, *flags, cache=tmp_path / f"kv{len(flags)}")
        evaluated = []
        for tools in orders:
            body = {"messages": [say("user", "Hello")], "tools": tools, "max_tokens": 1}
            timings = server.post("/v1/chat/completions", body)["timings"]
            evaluated.append(timings["prompt_n"])
            assert timings.get("stable_prompt", []) == made_stable
        assert server.cache()["prompts"]["tools_reordered"] == (2 if not flags else 0)
        assert (evaluated[1] == 1) == bool(flags), evaluated
        server.stop()
