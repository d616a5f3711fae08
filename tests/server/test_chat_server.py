"""The chat on the real server: thirty turns with tools over restarts of server and chat, and a start from nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from backend import require_backend
from cache_server import CacheServer, Serve, smollm2, toy
from chat_fixtures import Desk, home_in
from helpers import ROOT, free_port, is_running
from terminal import Terminal
from tool_fixtures import Bench

from pyrun.agents.endpoint import find_endpoint
from pyrun.chat.chain import Link
from pyrun.chat.local import local_provider
from pyrun.chat.prompt import choose, room
from pyrun.chat.turn import Limits
from pyrun.models.default import CHAT_TEMPLATE
from pyrun.providers.events import TOO_LONG, End, ProviderError, Request, Text
from pyrun.providers.known import Provider
from pyrun.providers.stream import stream

pytestmark = pytest.mark.server

CITIES = ("Rome", "Oslo", "Cairo", "Paris", "Lima")
CONTEXT = 2_048
TURNS = 30


def rendered(server: CacheServer, desk: Desk) -> list[int]:
    """The tokens of the prompt that the next request will have, without the beginning of an answer."""
    prompt = choose(desk.agent.session.rows, room(desk.agent.chain.current.context, desk.agent._count_tools()))
    tools = [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.schema},
        }
        for tool in desk.agent.session.tools
    ]
    body = {"messages": prompt.messages, "tools": tools, "add_generation_prompt": False}
    return server.tokens(server.post("/apply-template", body)["prompt"])


@contextmanager
def opened(bench: Bench, server: CacheServer, resume: bool) -> Iterator[Desk]:
    endpoint = find_endpoint(server.url, None)
    link = Link(local_provider(endpoint), endpoint.context)
    limits = Limits(rounds=3, answer_tokens=12)
    with Desk(bench, [link], tools="get_fact", resume=resume, endpoint=endpoint, limits=limits) as desk:
        yield desk


def test_thirty_turns_evaluate_what_is_new_over_restarts_of_server_and_chat(
    serve: Serve, bench: Bench, tmp_path: Path
) -> None:
    flags = ("--ctx-size", str(CONTEXT), "--parallel", "1", "--jinja", "--chat-template-file", str(CHAT_TEMPLATE))
    new = evaluated = generated = n_answers = 0
    for part in range(2):
        server = serve(smollm2(), *flags, cache=tmp_path / "cache")
        with opened(bench, server, resume=part > 0) as desk:
            for turn in range(TURNS // 2):
                number = part * TURNS // 2 + turn
                before = rendered(server, desk) if number else []
                desk.ask(f"Question {number}: what do you know about {CITIES[number % len(CITIES)]}?")
                for answer in desk.view.answers:
                    evaluated += answer.prompt_tokens - answer.reused_tokens
                    generated += answer.answer_tokens
                    n_answers += 1
                desk.view.answers.clear()
                after = rendered(server, desk)
                common = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(before))
                new += len(after) - common
            roles = [message["role"] for message in desk.messages]
        server.stop()
    # What was generated is known, but for the last token of each answer: it was drawn and never evaluated.
    new -= generated - n_answers
    print(f"{evaluated} tokens evaluated, {new} new, {n_answers} answers")
    assert roles.count("user") == TURNS
    assert evaluated <= 1.05 * new, f"{evaluated} evaluated, {new} new"


@pytest.mark.parametrize("protocol", ["openai", "anthropic"])
def test_the_server_streams_in_both_languages(protocol: str, serve: Serve) -> None:
    server = serve(toy("dense"), "--ctx-size", "512", "--parallel", "1", "--jinja")
    url = server.url if protocol == "anthropic" else f"{server.url}/v1"
    request = Request([{"role": "user", "content": "Hello"}], max_tokens=8)
    here = Provider("here", url, protocol, "any", kind="local")
    *pieces, end = stream(here, request)
    assert [piece for piece in pieces if isinstance(piece, Text)]
    assert isinstance(end, End)
    assert end.usage.prompt_tokens > 0
    assert 0 < end.usage.answer_tokens <= 8
    with pytest.raises(ProviderError) as refused:
        list(stream(here, Request([{"role": "user", "content": "word " * 4_000}])))
    assert refused.value.kind == TOO_LONG


def test_a_chat_starts_from_nothing_and_takes_its_server_along(tmp_path: Path) -> None:
    require_backend()
    environment = {**os.environ, **home_in(tmp_path, ROOT), "LLAMA_ARG_PORT": str(free_port()), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pyrun", "chat", "--no-build", "--backend", "cpu", "--tools", "none"]
    with Terminal(command, environment, tmp_path) as terminal:
        terminal.wait("/help lists the rest")
        launcher, *_ = psutil.Process(terminal.process.pid).children()
        [server] = launcher.children()
        assert is_running(server.pid)
        terminal.send("\x04")
        assert terminal.wait_for_end() == 0
    assert not is_running(server.pid)
    assert not is_running(launcher.pid)
