"""The chat on the real server: thirty turns with tools over restarts of server and chat, and a start from nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cache_server import CacheServer, Serve, smollm2
from chat_fixtures import Desk
from tool_fixtures import Bench

from pyrun.agents.endpoint import find_endpoint
from pyrun.chat.chain import Link
from pyrun.chat.local import local_provider
from pyrun.chat.prompt import choose, room
from pyrun.chat.turn import Limits
from pyrun.models.default import CHAT_TEMPLATE

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
    limits = Limits(rounds=3, answer_tokens=24)
    with Desk(bench, [link], tools="get_fact", resume=resume, endpoint=endpoint, limits=limits) as desk:
        yield desk


def test_thirty_turns_evaluate_what_is_new_over_restarts_of_server_and_chat(
    serve: Serve, bench: Bench, tmp_path: Path
) -> None:
    flags = ("--ctx-size", str(CONTEXT), "--parallel", "1", "--jinja", "--chat-template-file", str(CHAT_TEMPLATE))
    new = evaluated = 0
    for part in range(2):
        server = serve(smollm2(), *flags, cache=tmp_path / "cache")
        with opened(bench, server, resume=part > 0) as desk:
            for turn in range(TURNS // 2):
                number = part * TURNS // 2 + turn
                before = rendered(server, desk) if number else []
                desk.ask(f"Question {number}: what do you know about {CITIES[number % len(CITIES)]}?")
                for answer in desk.view.answers:
                    evaluated += answer.prompt_tokens - answer.reused_tokens
                desk.view.answers.clear()
                after = rendered(server, desk)
                common = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(before))
                new += len(after) - common
            roles = [message["role"] for message in desk.messages]
        server.stop()
    assert roles.count("user") == TURNS
    assert evaluated <= 1.05 * new, f"{evaluated} evaluated, {new} new"
