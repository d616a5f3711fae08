"""Several models behind one address: every command and the library say which one they mean."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from chat_fixtures import Desk, home_in
from fakes.routing_server import CONTEXT, RoutingServer, routing_server
from helpers import ROOT
from rich.console import Console
from stores import run
from tool_fixtures import Bench

from pyrun import Engine
from pyrun.agents.endpoint import find_endpoint
from pyrun.chat import commands
from pyrun.chat.chain import Link
from pyrun.chat.conversation import Chat
from pyrun.chat.local import local_provider
from pyrun.errors import UserError
from pyrun.server.served import Served, choose_loaded, choose_served

NAMES = ("Qwen3-4B-Q4_K_M", "Qwen3-8B-Q4_K_M", "gemma", "gemma-large")


@pytest.fixture
def router() -> Iterator[RoutingServer]:
    with routing_server(NAMES) as server:
        yield server


@pytest.mark.parametrize(
    ("wanted", "meant"),
    [
        ("Qwen3-4B-Q4_K_M", "Qwen3-4B-Q4_K_M"),
        ("4b", "Qwen3-4B-Q4_K_M"),
        ("models/Qwen3-8B-Q4_K_M.gguf", "Qwen3-8B-Q4_K_M"),
        ("gemma", "gemma"),
        ("LARGE", "gemma-large"),
    ],
)
def test_a_name_or_a_part_that_no_other_has_is_enough(router: RoutingServer, wanted: str, meant: str) -> None:
    assert choose_served(router.url, None, wanted) == Served(meant, is_routed=True, is_loaded=False)
    assert find_endpoint(router.url, None, wanted).model == meant


@pytest.mark.parametrize(
    ("wanted", "problem", "named"),
    [
        (None, "serves several models", NAMES),
        ("qwen", "serves several models that qwen may be", NAMES[:2]),
        ("llama", "does not serve llama", NAMES),
    ],
)
def test_what_may_be_several_or_none_is_asked_back(
    router: RoutingServer, wanted: str | None, problem: str, named: tuple[str, ...]
) -> None:
    with pytest.raises(UserError) as caught:
        choose_served(router.url, None, wanted)
    assert caught.value.message == f"{router.url} {problem}"
    assert caught.value.hint == f"choose one with --model: {', '.join(named)}"


def test_what_a_model_does_is_asked_of_the_one_that_is_loaded(router: RoutingServer) -> None:
    with pytest.raises(UserError, match="has loaded no model"):
        choose_loaded(router.url, None)
    router.loaded = {"gemma-large"}
    assert choose_loaded(router.url, None).name == "gemma-large"
    assert choose_loaded(router.url, None, "large").name == "gemma-large"
    with pytest.raises(UserError, match="has not loaded gemma$"):
        choose_loaded(router.url, None, "gemma")
    router.loaded.add("gemma")
    with pytest.raises(UserError) as caught:
        choose_loaded(router.url, None)
    assert caught.value.hint == "choose one with --model: gemma, gemma-large"
    assert router.asked == [], "looking loads nothing"


def test_a_router_with_a_single_model_is_told_its_name() -> None:
    with routing_server(["only"]) as server, Engine(url=server.url) as engine:
        assert engine.cache()["enabled"] and engine.model == "only"
        assert server.asked == [("/props", "only"), ("/cache", "only")]


COMMANDS = [
    ("warm --system x --json", ["/props", "/cache/warm"]),
    ("cache why --json", ["/cache/requests"]),
    ("top --once", ["/cache/requests", "/cache/slots"]),
    ("experts --json", ["/expert-stats"]),
    ("experts --track --json", ["/expert-tracking"]),
    ("connect codex", ["/props"]),
]


@pytest.mark.parametrize(("words", "paths"), COMMANDS)
def test_commands_ask_for_the_model_that_is_named(
    router: RoutingServer, capsys: pytest.CaptureFixture[str], words: str, paths: list[str]
) -> None:
    router.loaded = {"gemma", "gemma-large"}
    code, out, err = run(capsys, *words.split(), "--url", router.url, "--model", "large")
    assert code == 0 and out, err
    assert router.asked == [(path, "gemma-large") for path in paths]


@pytest.mark.parametrize("words", [words for words, _ in COMMANDS])
def test_commands_without_a_model_say_which_there_are(
    router: RoutingServer, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    router.loaded = {"gemma", "gemma-large"}
    code, _, err = run(capsys, *words.split(), "--url", router.url)
    assert code == 1 and "choose one with --model: " in err and "gemma-large" in err
    assert router.asked == []


def test_names_are_written_so_that_addresses_can_hold_them(capsys: pytest.CaptureFixture[str]) -> None:
    with routing_server(["a&b #1", "other"], loaded=["a&b #1", "other"]) as server:
        code, _, err = run(capsys, "cache", "why", "--json", "--user", "x&y", "--url", server.url, "--model", "a&b")
        assert code == 0, err
    assert server.addresses[-1] == "/cache/requests?user_id=x%26y&model=a%26b%20%231"


def test_a_model_that_cannot_be_loaded_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with routing_server(NAMES, broken=["gemma"]) as server:
        code, _, err = run(capsys, "warm", "--system", "x", "--url", server.url, "--model", "gemma")
    assert code == 1 and "model name=gemma failed to load" in err


# The library.


def test_an_engine_names_its_model_in_every_request(router: RoutingServer) -> None:
    messages = [{"role": "user", "content": "x"}]
    with Engine("4b", url=router.url) as engine:
        assert engine.model == "Qwen3-4B-Q4_K_M" and router.asked == []
        assert engine.generate("x").text == engine.chat(messages).text == "Qwen3-4B-Q4_K_M says so."
        assert list(engine.chat_stream(messages)) == list(engine.generate_stream("x"))
        assert engine.warm("x")["tokens"] == engine.plan(messages)["tokens"] == 7
        assert engine.cache("a user")["enabled"]
        assert engine.verify(["x"])[0].is_same
    assert {model for _, model in router.asked} == {"Qwen3-4B-Q4_K_M"}
    assert {path for path, _ in router.asked} >= {"/completion", "/v1/chat/completions", "/cache/warm", "/cache/plan"}
    assert "/cache?user_id=a%20user&model=Qwen3-4B-Q4_K_M" in router.addresses


def test_an_engine_has_its_model_loaded_again_before_it_asks_about_its_cache(router: RoutingServer) -> None:
    with Engine("4b", url=router.url) as engine:
        engine.cache()
        router.loaded.clear()  # another one needed the room
        assert engine.cache()["enabled"]


def test_an_engine_without_a_model_says_which_there_are(router: RoutingServer) -> None:
    with pytest.raises(UserError, match="serves several models") as caught:
        Engine(url=router.url)
    assert caught.value.hint == f"name one of them: {', '.join(NAMES)}"


# The chat.


@pytest.mark.parametrize("words", [["large"], ["--model", "large"]])
def test_a_chat_talks_to_the_model_that_is_named(
    router: RoutingServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
) -> None:
    monkeypatch.setenv("LLAMA_RUN_HOME", home_in(tmp_path, ROOT)["LLAMA_RUN_HOME"])
    monkeypatch.setenv("LLAMA_ARG_PORT", str(router.server_port))
    code, out, err = run(capsys, "chat", *words, "--once", "Why?", "--tools", "none")
    assert (code, out) == (0, "gemma-large says so.\n"), err
    assert {model for _, model in router.asked} == {"gemma-large"}
    assert {path for path, _ in router.asked} >= {"/props", "/tokenize", "/v1/chat/completions"}
    code, _, err = run(capsys, "chat", "--once", "Why?")
    assert code == 1 and "choose one with --model: " in err


def test_a_model_of_the_settings_gives_way_to_one_that_is_named(
    router: RoutingServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_RUN_HOME", home_in(tmp_path, ROOT)["LLAMA_RUN_HOME"])
    (tmp_path / "llama-run.toml").write_text(f"[server]\nport = {router.server_port}\n[chat]\nmodel = '4b'\n")
    asked = ["--once", "Why?", "--tools", "none"]
    assert run(capsys, "chat", *asked)[1] == "Qwen3-4B-Q4_K_M says so.\n"
    assert run(capsys, "chat", "large", *asked)[1] == "gemma-large says so.\n"
    assert run(capsys, "chat", "large", "--model", "4b", *asked)[0] == 2


def test_a_chat_changes_to_another_model_by_a_part_of_its_name(router: RoutingServer, bench: Bench) -> None:
    endpoint = find_endpoint(router.url, None, "4b")
    with Desk(bench, [Link(local_provider(endpoint), 1)], endpoint=endpoint, tools="none") as desk:
        out = io.StringIO()
        chat = Chat(desk.agent, desk.servers, [], "", Console(file=out, width=200))
        assert desk.ask("Who?") == "Qwen3-4B-Q4_K_M says so."
        commands.run(chat, "/model large")
        assert "answers with gemma-large from now on" in out.getvalue() and chat.link.context == CONTEXT
        router.asked.clear()
        assert desk.ask("Who?") == "gemma-large says so."
        assert {model for _, model in router.asked} == {"gemma-large"}, "tokens are counted by it, too"
        with pytest.raises(UserError) as caught:
            commands.run(chat, "/model qwen")
    assert caught.value.hint == f"name one of them: {', '.join(NAMES[:2])}"


def test_the_answer_of_a_command_is_the_servers(router: RoutingServer, capsys: pytest.CaptureFixture[str]) -> None:
    router.loaded = {"gemma"}
    shown = json.loads(run(capsys, "cache", "why", "--json", "--url", router.url)[1])
    assert [(one["reused"], one["reason"]) for one in shown] == [(3, "parted")]
    assert "slot 0: idle" in run(capsys, "top", "--once", "--url", router.url)[1]
