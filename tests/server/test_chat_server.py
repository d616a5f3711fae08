"""The chat on the real server: thirty turns with tools over restarts of server and chat, and a start from nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from backend import require_backend
from cache_server import CacheServer, Serve, smollm2, toy
from chat_fixtures import Desk, home_in
from helpers import ROOT, free_port, is_running, only_server, wait_until
from terminal import Terminal
from tool_fixtures import Bench

from pyrun.agents.endpoint import find_endpoint
from pyrun.chat.chain import Link
from pyrun.chat.local import local_provider
from pyrun.chat.prompt import choose, room
from pyrun.chat.stats import Answer
from pyrun.chat.turn import Limits
from pyrun.models.default import CHAT_TEMPLATE
from pyrun.providers.events import TOO_LONG, End, ProviderError, Request, Text
from pyrun.providers.known import Provider
from pyrun.providers.stream import stream
from toys.corpus import TEXT

pytestmark = pytest.mark.server

CITIES = ("Rome", "Oslo", "Cairo", "Paris", "Lima")
CONTEXT = 4_096  # so much that nothing is cut
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
def opened(bench: Bench, server: CacheServer, **more: Any) -> Iterator[Desk]:
    endpoint = find_endpoint(server.url, None)
    link = Link(local_provider(endpoint), endpoint.context)
    with Desk(bench, [link], endpoint=endpoint, limits=Limits(rounds=3, answer_tokens=4), **more) as desk:
        yield desk


def test_thirty_turns_evaluate_what_is_new_over_restarts_of_server_and_chat(
    serve: Serve, bench: Bench, tmp_path: Path
) -> None:
    flags = ("--ctx-size", str(CONTEXT), "--parallel", "1", "--jinja", "--chat-template-file", str(CHAT_TEMPLATE))
    answers: list[Answer] = []
    for part in range(2):
        server = serve(smollm2(), *flags, cache=tmp_path / "cache")
        with opened(bench, server, tools="get_fact", resume=part > 0) as desk:
            for number in range(part * TURNS // 2, (part + 1) * TURNS // 2):
                desk.ask(f"Question {number}: what do you know about {CITIES[number % len(CITIES)]}?")
            answers += desk.view.answers
            prompt = rendered(server, desk)
            roles = [message["role"] for message in desk.messages]
        server.stop()
    assert roles.count("user") == TURNS
    evaluated = sum(answer.prompt_tokens - answer.reused_tokens for answer in answers)
    # Each token of the whole conversation is new once. Those that were generated are known from then on, but for the
    # last one of each answer: it was drawn and never evaluated.
    new = len(prompt) - sum(answer.answer_tokens - 1 for answer in answers)
    print(f"{evaluated} tokens evaluated, {new} new, {len(answers)} answers")
    assert evaluated <= 1.05 * new, f"{evaluated} evaluated, {new} new"


def test_a_chat_has_its_next_cut_evaluated_before_it_comes(serve: Serve, bench: Bench, tmp_path: Path) -> None:
    server = serve(toy("dense"), "--ctx-size", "1024", "--parallel", "1", "--jinja", cache=tmp_path / "cache")
    reused_at_cuts = []
    with opened(bench, server, tools="none") as desk:
        n_cuts = 0
        for number in range(16):
            desk.ask(f"Question {number}: {TEXT.splitlines()[number][:100]}")
            cut = choose(desk.agent.session.rows[:-1], room(desk.agent.chain.current.context, 0))
            if cut.n_cuts > n_cuts:
                reused_at_cuts.append(desk.view.answers[-1].reused_tokens)
            n_cuts = cut.n_cuts
            desk.agent.look_ahead()
            wait_until(lambda: desk.agent.ahead._connection is None, 60, "the next cut is evaluated, if it is near")
            server.flush()
    assert reused_at_cuts, "it was cut"
    assert min(reused_at_cuts) > 150, "the system message alone has fewer than 30"


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
        terminal.wait("of 8,192 tokens")  # the line below the prompt, which is read from then on
        launcher, *_ = psutil.Process(terminal.process.pid).children()
        server = only_server(launcher.pid)
        terminal.send("\x04")
        assert terminal.wait_for_end() == 0
    assert not is_running(server)
    assert not is_running(launcher.pid)
