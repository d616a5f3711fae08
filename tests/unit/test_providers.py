"""Answers of other services as events, and their troubles as kinds that can be decided on."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import tomlkit
from click.testing import CliRunner
from fakes.dialects import ANTHROPIC, DIALECTS, Reply
from fakes.model_server import ModelServer, model_server
from helpers import wait_until

from pyrun.cli.main import cli
from pyrun.errors import UserError
from pyrun.providers import events
from pyrun.providers.ask import Spending, ask
from pyrun.providers.change import add_rule, put_provider, remove_provider
from pyrun.providers.events import End, Event, Function, ProviderError, Reasoning, Request, Text, ToolCall
from pyrun.providers.keys import read_keys, write_key
from pyrun.providers.known import KINDS, Prices, Provider, load_providers
from pyrun.providers.stream import cost, stream

KEY = "sk-very-secret-1234"
SERVICES = sorted(KINDS)
TELL_REASONING = ("anthropic", "grok", "ollama")
TELL_CACHED = ("anthropic", "grok", "openai")
WEATHER = Function("weather", "Tells it.", {"type": "object", "properties": {"city": {"type": "string"}}})
HELLO: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]


def provider(server: ModelServer, service: str, **more: Any) -> Provider:
    url = server.url + urlsplit(KINDS[service].base_url).path
    return Provider("cloud", url, KINDS[service].protocol, "m", **{"key": KEY, "kind": service, **more})


def texts(found: list[Event], kind: type[Text] | type[Reasoning]) -> str:
    return "".join(event.text for event in found if isinstance(event, kind))


def failure(server: ModelServer, service: str, **more: Any) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        list(stream(provider(server, service, **more), Request(HELLO)))
    assert KEY not in caught.value.message
    return caught.value


@pytest.mark.parametrize("service", SERVICES)
def test_text_reasoning_calls_and_usage_are_one_kind_of_events(service: str) -> None:
    reply = Reply(
        ["It ", "is ", "so."], ["Let me ", "think."], [("a", "weather", {"city": "Rome"}), ("b", "weather", {})]
    )
    with model_server(lambda _: reply, KEY, DIALECTS[service]) as server:
        found = list(stream(provider(server, service), Request(HELLO, (WEATHER,), 50, "session")))
    assert texts(found, Text) == "It is so."
    assert texts(found, Reasoning) == ("Let me think." if service in TELL_REASONING else "")
    calls = [event for event in found if isinstance(event, ToolCall)]
    assert [(call.id, call.name, call.parsed()) for call in calls] == [
        ("a", "weather", {"city": "Rome"}),
        ("b", "weather", {}),
    ]
    end = found[-1]
    assert isinstance(end, End)
    assert end.reason == "tool_calls"
    cached = 60 if service in TELL_CACHED else 0
    assert (end.usage.prompt_tokens, end.usage.cached_tokens, end.usage.answer_tokens) == (100, cached, 7)
    [sent] = server.requests
    assert ("cache_control" in sent, "prompt_cache_key" in sent) == (service == "anthropic", service == "openai")
    assert [thinking["signature"] for thinking in end.thinking] == (["signed"] if service == "anthropic" else [])


@pytest.mark.parametrize("service", SERVICES)
def test_an_answer_that_is_cut_at_its_limit_says_so_also_where_it_ends_in_a_call(service: str) -> None:
    reply = Reply(["So: "], calls=[("a", "weather", {"city": "Rome"})], at_limit=True)
    with model_server(lambda _: reply, KEY, DIALECTS[service]) as server:
        found = list(stream(provider(server, service), Request(HELLO, (WEATHER,))))
    [call] = [event for event in found if isinstance(event, ToolCall)]
    assert call.arguments == '{"city":'
    assert isinstance(found[-1], End) and found[-1].reason == "length"


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("written", ['{"city": ', "[1]", ""])
def test_arguments_that_no_server_takes_are_sent_in_an_object(service: str, written: str) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": written}}
    history = [
        *HELLO,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "It was not made."},
    ]
    with model_server(lambda _: Reply(["Rain."]), dialect=DIALECTS[service]) as server:
        list(stream(provider(server, service), Request(history)))
    [sent] = server.requests
    if service == "anthropic":
        arguments = sent["messages"][1]["content"][0]["input"]
    else:
        arguments = json.loads(sent["messages"][2]["tool_calls"][0]["function"]["arguments"])
    assert arguments == ({"unreadable": written} if written else {})


def test_anthropic_is_sent_calls_results_and_signed_thinking_as_it_wants_them() -> None:
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "signed"}
    call = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    history = [
        *HELLO,
        {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": [call], "thinking": [thinking]},
        {"role": "tool", "tool_call_id": "a", "content": "Rain"},
        {"role": "user", "content": "So?"},
    ]
    with model_server(lambda _: Reply(["Rain."])) as server:
        list(stream(provider(server, "anthropic"), Request(history)))
    [sent] = server.requests
    assert sent["system"] == "Be brief."
    assert sent["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
        {
            "role": "assistant",
            "content": [thinking, {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "Rome"}}],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "Rain"},
                {"type": "text", "text": "So?"},
            ],
        },
    ]


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (Reply(status=401, error=f"the key {KEY} is wrong"), events.REFUSED),
        (Reply(status=429, retry_after="7"), events.OVER_LIMIT),
        (Reply(status=500), events.OVERLOADED),
        (Reply(status=529, error="Overloaded"), events.OVERLOADED),
        (Reply(status=400, error="prompt is too long: 210000 tokens"), events.TOO_LONG),
        (Reply(status=400, error="Your credit balance is too low"), events.OVER_LIMIT),
        (Reply(status=404, error="no such model"), events.WRONG),
        (Reply(["half ", "an ", "answer"], cut=True), events.CUT),
        (Reply(["half ", "an ", "answer"], silent_cut=True), events.CUT),
        (Reply(["half ", "an ", "answer"], malformed=True), events.CUT),
        (Reply(["half ", "an ", "answer"], error_event=True), events.OVERLOADED),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_trouble_has_its_kind_and_no_key(service: str, reply: Reply, kind: str) -> None:
    with model_server(lambda _: reply, dialect=DIALECTS[service]) as server:
        error = failure(server, service)
    assert error.kind == kind, error.message
    assert error.retry_after == (7.0 if reply.retry_after else None)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, events.REFUSED),
        (404, events.WRONG),
        (429, events.OVER_LIMIT),
        (500, events.OVERLOADED),
        (529, events.OVERLOADED),
    ],
)
def test_an_error_in_the_middle_of_anthropics_stream_has_the_kind_of_its_type(
    status: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialect = replace(ANTHROPIC, error_event=lambda text: ANTHROPIC.error(status, "It broke."))
    monkeypatch.setattr("fakes.model_server.ANTHROPIC", dialect)
    with model_server(lambda _: Reply(["half ", "an ", "answer"], error_event=True), dialect=dialect) as server:
        error = failure(server, "anthropic")
    assert error.kind == kind, error.message
    assert error.message.endswith("): It broke."), "200 is no status of an error"


@pytest.mark.parametrize("service", ["openai", "anthropic"])
@pytest.mark.parametrize("end", ["\r", "\n", "\r\nmore"])
def test_a_key_that_cannot_be_sent_is_not_shown(service: str, end: str) -> None:
    with model_server(lambda _: Reply()) as server:
        failure(server, service, key=KEY + end)


def test_a_key_is_taken_out_before_a_message_is_cut() -> None:
    with model_server(lambda _: Reply(status=400, error=KEY * 40)) as server:
        assert KEY[:3] not in failure(server, "openai").message


@pytest.mark.parametrize("service", ["openai", "anthropic"])
def test_a_server_that_is_not_there_is_unreachable(service: str) -> None:
    with model_server(lambda _: Reply()) as server:
        pass
    assert failure(server, service).kind == events.UNREACHABLE


def test_costs_follow_the_prices_and_what_is_asked_too_often_is_refused() -> None:
    prices = Prices(10.0, 20.0, 1.0)
    with model_server(lambda _: Reply(["Yes."], prompt_tokens=100_000, cached_tokens=60_000)) as server:
        big = provider(server, "openai", prices=prices, max_cost=0.4)
        spending = Spending()
        assert ask(big, "Really?", spending=spending) == "Yes."
        assert spending.spent["cloud"] == pytest.approx(0.4 + 0.06 + 7 * 20e-6)
        with pytest.raises(UserError, match="max_cost"):
            ask(big, "Really?", spending=spending)
    assert cost(Provider("x", "http://x", "openai", "m"), events.Usage(5)) is None


def test_what_was_not_waited_for_is_paid_for_all_the_same() -> None:
    speaks, stopped, spending = threading.Event(), threading.Event(), Spending()

    def script(_: dict[str, Any]) -> Reply:
        stopped.set()
        speaks.wait(60)
        return Reply(["Because."] * 100)

    with model_server(script) as server:
        big = provider(server, "openai", prices=Prices(10.0, 20.0), max_cost=1e-6)
        with pytest.raises(UserError, match="the call was cancelled"):
            ask(big, "Why? " * 100, spending=spending, stopped=stopped)
        speaks.set()
        wait_until(lambda: spending.spent.get("cloud", 0.0) >= 125 * 10e-6, 60, "it is counted")
        with pytest.raises(UserError, match="max_cost"):
            ask(big, "Really?", spending=spending)


# Keys and settings


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "llama.cpp").mkdir()
    (tmp_path / "llama.cpp" / "upstream.toml").write_text("")
    monkeypatch.setenv("LLAMA_RUN_HOME", str(tmp_path))
    for kind in KINDS.values():
        monkeypatch.delenv(kind.key_env or "NONE", raising=False)
    yield tmp_path


def test_keys_are_for_their_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    write_key(path, "a", KEY)
    write_key(path, "b", "other")
    write_key(path, "b", None)
    assert read_keys(path) == {"a": KEY}
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    with pytest.raises(UserError, match="others can read"):
        read_keys(path)


def test_a_key_loses_its_line_end_and_one_that_cannot_be_sent_is_refused_unseen(tmp_path: Path) -> None:
    settings, keys = tmp_path / "llama-run.toml", tmp_path / "keys.json"
    put_provider(settings, "claude", {"kind": "anthropic", "model": "m"})
    for told in (f"{KEY}\r", f" {KEY}\n"):
        [claude] = load_providers(settings, {"ANTHROPIC_API_KEY": told})
        assert claude.key == KEY
    write_key(keys, "claude", "other")
    [claude] = load_providers(settings, {"ANTHROPIC_API_KEY": "\r"}, keys)
    assert claude.key == "other"
    for wrong in (f"{KEY}\r\nmore", f"{KEY}\u2019"):
        with pytest.raises(UserError, match=r"\[providers.claude\]: its key") as refused:
            load_providers(settings, {"ANTHROPIC_API_KEY": wrong})
        assert KEY not in str(refused.value)


def test_settings_are_changed_without_losing_what_a_person_wrote(tmp_path: Path) -> None:
    settings = tmp_path / "llama-run.toml"
    settings.write_text("# mine\n[tools]\nallow = ['read_file'] # yes\n")
    put_provider(settings, "claude", {"kind": "anthropic", "model": "m"})
    add_rule(settings, "write_file:notes/*")
    text = settings.read_text()
    assert "# mine" in text
    assert "# yes" in text
    [claude] = load_providers(settings, {"ANTHROPIC_API_KEY": KEY})
    assert (claude.base_url, claude.protocol, claude.key) == ("https://api.anthropic.com", "anthropic", KEY)
    assert KEY not in repr(claude)
    assert remove_provider(settings, "claude")
    assert not remove_provider(settings, "claude")
    assert load_providers(settings, {}) == []


@pytest.mark.parametrize(
    "text",
    [
        'providers.big = { kind = "openai", model = "b" }\nserver.port = 8000\nserver.no-cache-ssd = true\n',
        'providers.big.model = "b"\nserver.port = 8000\nproviders.big.kind = "openai"\n',
        'providers = { big = { kind = "openai", model = "b" } }\n[server]\nport = 8000\n',
        '[providers.big]\nkind = "openai"\nmodel = "b"\n[server]\nport = 8000\n[providers.small]\nmodel = "s"\n',
        '[providers]\r\nbig = { kind = "openai", model = "b" } # mine\r\n[server]\r\nport = 8000\r\n',
    ],
)
def test_whatever_the_layout_a_change_changes_what_was_meant_or_nothing(tmp_path: Path, text: str) -> None:
    settings = tmp_path / "llama-run.toml"

    def after(change: Callable[[], object]) -> dict[str, Any]:
        settings.write_bytes(text.encode())
        try:
            change()
        except UserError as error:
            assert "by hand" in (error.hint or "")
            assert settings.read_bytes() == text.encode()
            return {}
        return tomlkit.parse(settings.read_text()).unwrap()

    before = tomlkit.parse(text).unwrap()
    third = {"kind": "openai", "model": "t"}
    put = after(lambda: put_provider(settings, "third", third))
    assert put in ({}, before | {"providers": before["providers"] | {"third": third}})
    changed = after(lambda: put_provider(settings, "big", {"model": "c"}))
    big = before["providers"]["big"] | {"model": "c"}
    assert changed in ({}, before | {"providers": before["providers"] | {"big": big}})
    removed = after(lambda: remove_provider(settings, "big"))
    assert "big" not in removed.get("providers", {})
    assert removed in ({},) or removed["server"] == before["server"]
    ruled = after(lambda: add_rule(settings, "read_file"))
    assert ruled in ({}, before | {"tools": {"allow": ["read_file"]}})


def test_a_usual_file_is_changed_wherever_its_tables_stand(tmp_path: Path) -> None:
    settings = tmp_path / "llama-run.toml"
    text = '# mine\n[providers.big]\nmodel = "b"\n[server]\nport = 8000 # why\n[providers.small]\nmodel = "s"\n'
    settings.write_text(text, newline="\r\n")
    put_provider(settings, "third", {"model": "t"})
    assert remove_provider(settings, "big")
    known = tomlkit.parse(settings.read_text()).unwrap()
    assert known == {"server": {"port": 8000}, "providers": {"small": {"model": "s"}, "third": {"model": "t"}}}
    assert b"# mine\r\n" in settings.read_bytes() and b"8000 # why\r\n" in settings.read_bytes()
    assert settings.read_bytes().count(b"\n") == settings.read_bytes().count(b"\r\n")


def test_providers_are_added_listed_tested_and_removed_and_no_key_is_shown(home: Path) -> None:
    with model_server(lambda _: Reply(["Hello."]), KEY) as server:
        words = ["providers", "add", "mine", "--base-url", f"{server.url}/v1", "--model", "m", "--key-stdin"]
        shown = CliRunner().invoke(cli, words, input=KEY + "\n")
        assert shown.exit_code == 0, shown.exception
        listed = CliRunner().invoke(cli, ["providers", "list"])
        tested = CliRunner().invoke(cli, ["providers", "test"])
        assert "has a key" in listed.output
        assert "answered" in tested.output
        assert server.keys == [KEY]
    failed = CliRunner().invoke(cli, ["providers", "test", "mine"])
    assert failed.exit_code != 0
    assert "unreachable" in failed.output
    for output in (shown, listed, tested, failed):
        assert KEY not in output.output + str(output.exception)
    assert KEY not in (home / "llama-run.toml").read_text()
    assert CliRunner().invoke(cli, ["providers", "remove", "mine"]).exit_code == 0
    assert json.loads((home / "keys.json").read_text()) == {}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_known_service_needs_only_its_model(kind: str, home: Path) -> None:
    assert CliRunner().invoke(cli, ["providers", "add", kind, "--model", "m"]).exit_code == 0
    [made] = load_providers(home / "llama-run.toml", {KINDS[kind].key_env or "": KEY})
    assert (made.base_url, made.kind) == (KINDS[kind].base_url, kind)
    assert made.key == (KEY if KINDS[kind].key_env else None)
