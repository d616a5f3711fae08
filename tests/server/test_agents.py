"""Recorded sessions of real agents, replayed across a restart: what an agent has said before is not evaluated again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agents import replay
from agents.replay import Fixture, Request
from cache_server import CacheServer, Serve, toy
from helpers import wait_until

pytestmark = pytest.mark.server

SHRINK = 16  # the toys know few words: lines are cut to a sixteenth, names and schemas stay
ALLOWED = 0.01  # of the prompt may be evaluated beyond what is new,
SOME = 8  # or so many tokens, where the prompt is short
TURN_TOKENS = 24  # that a template writes around one turn, at most
CONTEXT = ("--ctx-size", "32768", "--parallel", "1", "--jinja")
MODEL = "dense"


@pytest.fixture(params=replay.names())
def fixture(request: pytest.FixtureRequest) -> Fixture:
    return replay.load(str(request.param), SHRINK)


def send(server: CacheServer, request: Request, **fields: Any) -> tuple[int, int]:
    """Tokens reused and evaluated. The answer is kept to one token: the recorded one is in the next request."""
    limit = "max_output_tokens" if request.path.endswith("/responses") else "max_tokens"
    body = request.body | {limit: 1, "stream": False, "temperature": 0} | fields
    response = server.request("POST", request.path, body)
    assert response.status_code == 200, response.text
    # The next one may branch off this one, and waits no longer for the disk than evaluating takes.
    wait_until(lambda: server.cache()["state"]["queued"] == 0, 30, "what it left is written")
    usage = response.json()["usage"]
    if request.path.endswith("/responses"):
        cached = int(usage["input_tokens_details"]["cached_tokens"])
        return cached, int(usage["input_tokens"]) - cached
    if "/messages" in request.path:
        return int(usage.get("cache_read_input_tokens", 0)), int(usage["input_tokens"])
    timings = response.json()["timings"]
    return int(timings["cache_n"]), int(timings["prompt_n"])


def wasted(server: CacheServer, request: Request, known: list[Request], evaluated: int) -> int:
    """Tokens evaluated beyond what the request says for the first time, with what a template writes around it."""
    new = replay.new_text(request, known)
    turns = len(request.body.get("messages") or request.body.get("input") or [])
    before = max((len(one.body.get("messages") or one.body.get("input") or []) for one in known), default=0)
    return evaluated - len(server.tokens(new)) - TURN_TOKENS * (1 + max(0, turns - before))


def replay_session(server: CacheServer, session: Sequence[Request], known: list[Request]) -> list[str]:
    """Sends a session's requests and tells where more was evaluated than had to be."""
    complaints = []
    for number, request in enumerate(session):
        reused, evaluated = send(server, request)
        excess = wasted(server, request, known, evaluated)
        if excess > max(SOME, ALLOWED * (reused + evaluated)):
            complaints.append(f"request {number}: {reused} reused, {evaluated} evaluated, {excess} of them again")
        known.append(request)
    return complaints


def test_a_new_session_after_a_restart_evaluates_its_own_words_only(
    serve: Serve, tmp_path: Path, fixture: Fixture
) -> None:
    known: list[Request] = []
    first = serve(toy(MODEL), *CONTEXT, cache=tmp_path)
    assert replay_session(first, fixture.sessions[0], known) == []
    first.stop()
    second = serve(toy(MODEL), *CONTEXT, cache=tmp_path)
    assert replay_session(second, fixture.sessions[1], known) == []


def beginnings(server: CacheServer, requests: Iterable[tuple[Request, dict[str, Any]]]) -> list[int]:
    return [send(server, request, **fields)[0] for request, fields in requests]


def beginning(agent: str) -> Request:
    """An agent's first request, without its tools: whose it is does not depend on them."""
    request = replay.load(agent, SHRINK).sessions[0][0]
    return replace(request, body={key: value for key, value in request.body.items() if "tool" not in key})


@pytest.mark.parametrize("agent", ["claude-code", "codex", "aider"])  # one for each protocol
def test_two_users_by_field_share_nothing(serve: Serve, tmp_path: Path, agent: str) -> None:
    request = beginning(agent)
    server = serve(toy(MODEL), *CONTEXT, cache=tmp_path)
    alice, bob, again = beginnings(server, [(request, {"llama_user_id": user}) for user in ("alice", "bob", "alice")])
    assert (alice, bob) == (0, 0) and again > 0


def users_of_claude_code() -> list[tuple[Request, dict[str, Any]]]:
    """The first requests of two people who type the same, and of the first one again."""
    request = beginning("claude-code")
    told = json.loads(request.body["metadata"]["user_id"])
    bob = told | {"device_id": "b" * 64, "session_id": told["session_id"].replace("0", "1")}
    people = [told, bob, told | {"session_id": bob["session_id"]}]
    return [(request, {"metadata": {"user_id": json.dumps(one, separators=(",", ":"))}}) for one in people]


@pytest.mark.parametrize("switch", [(), ("--metadata-users", "on")])
def test_two_users_by_metadata_share_nothing(serve: Serve, tmp_path: Path, switch: tuple[str, ...]) -> None:
    server = serve(toy(MODEL), *CONTEXT, *switch, cache=tmp_path)
    alice, bob, again = beginnings(server, users_of_claude_code())
    assert (alice, bob) == (0, 0) and again > 0


def test_two_users_by_metadata_share_all_where_it_is_off(serve: Serve, tmp_path: Path) -> None:
    server = serve(toy(MODEL), *CONTEXT, "--metadata-users", "off", cache=tmp_path)
    alice, bob, again = beginnings(server, users_of_claude_code())
    assert alice == 0 and bob > 0 and bob == again


def test_the_older_shape_of_claude_codes_user_separates_devices_not_sessions(serve: Serve, tmp_path: Path) -> None:
    request = beginning("claude-code")
    device, session = "a" * 64, "00000001-0000-4000-8000-00000000000"
    shapes = [f"user_{device}_account__session_{session}{n}" for n in (1, 2)]
    server = serve(toy(MODEL), *CONTEXT, "--metadata-users", "on", cache=tmp_path)
    first, second, other = beginnings(
        server,
        [
            (request, {"metadata": {"user_id": shapes[0]}}),
            (request, {"metadata": {"user_id": shapes[1]}}),
            (request, {"metadata": {"user_id": shapes[1].replace("a" * 64, "b" * 64)}}),
        ],
    )
    assert first == 0 and second > 0 and other == 0


def test_without_stable_prompts_the_billing_line_costs_the_beginning(serve: Serve, tmp_path: Path) -> None:
    request = beginning("claude-code")
    billing, *system = request.body["system"]
    other = {"system": [billing | {"text": billing["text"].replace(".afe;", ".123;")}, *system]}
    assert other["system"] != request.body["system"]
    for switch, is_reused in (("--no-stable-prompts", False), ("--stable-tools", True)):
        server = serve(toy(MODEL), *CONTEXT, switch, cache=tmp_path / switch)
        send(server, request)
        reused, evaluated = send(server, request, **other)
        assert (reused > 10 * evaluated) == is_reused, (switch, reused, evaluated)
        server.stop()
