"""MCP servers of a chat: their tools, resources and prompts, and that none of them can take the chat along."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from chat_fixtures import Desk, link
from fakes.dialects import Reply
from fakes.model_server import model_server
from helpers import ROOT, children_told, free_port, wait_until
from mcp.server.mcpserver import MCPServer
from rich.console import Console
from tool_fixtures import Bench

from pyrun.chat import commands, mcp_servers
from pyrun.chat.conversation import Chat
from pyrun.chat.mcp_servers import McpServers, RemoteServer, read_mcp_json
from pyrun.errors import UserError
from pyrun.providers.events import ToolCall
from pyrun.tools.setup import IncludedServer
from pyrun.tools.tool import ToolError

PATIENCE = 120.0  # seconds; on a busy machine a server may take that long to start


def things(*words: str) -> IncludedServer:
    return IncludedServer(sys.executable, (str(ROOT / "tests/fakes/mcp_things.py"), *words), {})


def test_tools_prompts_and_resources_are_used_and_a_dead_or_mute_server_costs_its_own_calls(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, dict[str, Any]]] = []

    def script(body: dict[str, Any]) -> Reply:
        last = body["messages"][-1]
        return Reply([last["content"]]) if last["role"] == "tool" else Reply(calls=[("c", *calls[-1])])

    with (
        model_server(script) as server,
        Desk(bench, [link(server)], servers={"things": things()}, tools="things", start_seconds=PATIENCE) as desk,
    ):
        offered = [tool.name for tool in desk.agent.session.tools]
        assert offered == ["things__add", "things__die", "things__flood", "things__hang", "things__lie"]
        calls.append(("things__add", {"a": 2, "b": 3}))
        desk.view.says = "session"
        assert desk.ask("Add.") == "5"
        assert '"a": 2' in desk.view.questions[0]
        calls.append(("things__die", {}))
        assert "died during the call" in desk.ask("Die.")
        calls.append(("things__add", {"a": 1, "b": 1}))
        assert desk.ask("Add.") == "2"
        calls.append(("things__flood", {}))
        assert 1_000 < len(desk.ask("Flood.")) < 40_000
        calls.append(("things__hang", {}))
        with monkeypatch.context() as patched:
            patched.setattr(mcp_servers, "CALL_SECONDS", 1.0)
            assert "did not answer within" in desk.ask("Hang.")
        hang = next(tool for tool in desk.servers.tools if tool.name == "hang")
        stopped = threading.Event()
        threading.Timer(0.5, stopped.set).start()
        with pytest.raises(ToolError, match="stopped"):
            desk.servers.call(hang, {}, stopped)
        calls.append(("things__add", {"a": 4, "b": 4}))
        assert desk.ask("Add.") == "8"
        assert [tool.name for tool in desk.agent.session.tools] == offered
        assert len([1 for body in server.requests if body["tools"] != server.requests[0]["tools"]]) == 0

        chat = Chat(desk.agent, desk.servers, [], "", Console(quiet=True))
        assert chat.with_attachments("See @things:note://one and mail@things").startswith(
            "Resource note://one of things:\n\nthe note\n\nSee"
        )
        chat.attachments.append("a file")
        with pytest.raises(ToolError, match="note://none"):
            chat.with_attachments("See @things:note://none")
        assert chat.with_attachments("See") == "a file\n\nSee"
        assert commands.run(chat, "/things:greet name=Ann")
        assert desk.messages[-1]["content"] == "Say hello to Ann."
        commands.run(chat, "/things:greet name=@things:note://one")
        assert desk.messages[-1]["content"].endswith("Say hello to @things:note://one."), "the person did not type that"
        assert "/things:greet" in list(commands.names(desk.servers))
        add = ToolCall("c", "things__add", '{"a": 1, "b": 1}')
        assert not desk.agent.toolset.prepare(add).needs_consent
        desk.agent.toolset.choose("files", 100_000)
        with pytest.raises(ToolError, match="there is no tool"):
            desk.agent.toolset.prepare(add)
    assert "a word for the log" in (bench.folder / "logs" / "mcp.log").read_text()


def test_a_result_that_is_not_as_promised_is_said_to_be_wrong_and_ends_no_server(tmp_path: Path) -> None:
    with McpServers({"things": things()}, tmp_path / "mcp.log", PATIENCE) as servers:
        lie = next(tool for tool in servers.tools if tool.name == "lie")
        for number in (1, 2):  # it would begin anew with 1
            with pytest.raises(
                ToolError, match=rf"the call was made; its result is invalid: .*\b{number} is not of type"
            ):
                servers.call(lie, {}, threading.Event())


def test_a_server_that_never_answers_or_is_not_there_is_reported(tmp_path: Path) -> None:
    gone = IncludedServer("/no/such/program", (), {})
    with McpServers({"gone": gone}, tmp_path / "mcp.log", start_seconds=PATIENCE) as servers:
        [problem] = servers.problems
        assert problem.startswith("gone: it could not be started: ") and "/no/such/program" in problem
        with pytest.raises(ToolError, match=r"gone does not run: .*/no/such/program"):
            servers.read("gone", "x")
        with pytest.raises(ToolError, match="there is no MCP server"):
            servers.read("nobody", "x")
    with McpServers({"mute": things("mute")}, tmp_path / "mcp.log", start_seconds=1) as servers:
        assert servers.problems == ["mute: it did not answer within 1 s, and is left out"]
        assert servers.tools == []
        wait_until(lambda: not children_told("mute"), 30, "it is ended, too")


def test_mcp_json_is_read_and_what_is_wrong_with_it_is_told(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    assert read_mcp_json(path) == {}
    entry = {"command": "x", "args": ["-y"], "env": {"A": "1"}}
    path.write_text(json.dumps({"mcpServers": {"a": entry, "b": {"url": "http://x/mcp"}}}))
    assert read_mcp_json(path) == {"a": IncludedServer("x", ("-y",), {"A": "1"}), "b": RemoteServer("http://x/mcp")}
    for wrong in (
        *("{", "[]", '{"mcpServers": {"a": {}}}', '{"mcpServers": {"a": {"command": "x", "args": "y"}}}'),
        '{"mcpServers": {"a": {"url": "http://x", "headers": ["y"]}}}',
        '{"mcpServers": {"a": {"url": "http://x", "headers": {"A": "${NO_SUCH_VARIABLE}"}}}}',
    ):
        path.write_text(wrong)
        with pytest.raises(UserError):
            read_mcp_json(path)


@contextmanager
def guarded_server(key: str) -> Iterator[str]:
    """One that is spoken to by HTTP, and answers only those who bring the key."""
    things = MCPServer("guarded")
    things.tool()(add)
    inside = things.streamable_http_app()

    async def guard(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and dict(scope["headers"]).get(b"authorization") != f"Bearer {key}".encode():
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b""})
        else:
            await inside(scope, receive, send)

    port = free_port()
    server = uvicorn.Server(uvicorn.Config(guard, port=port, log_level="error", timeout_graceful_shutdown=30))
    thread = threading.Thread(target=server.run)
    thread.start()
    wait_until(lambda: server.started, 30, "it listens")
    try:
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        server.should_exit = True
        thread.join()


def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return str(a + b)


def test_a_server_by_url_is_sent_its_headers_and_their_keys_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THINGS_KEY", "very-secret")
    path = tmp_path / "mcp.json"
    with guarded_server("very-secret") as url:
        headers = {"Authorization": "Bearer ${THINGS_KEY}"}
        path.write_text(json.dumps({"mcpServers": {"a": {"url": url, "headers": headers}, "b": {"url": url}}}))
        known = read_mcp_json(path)
        assert "very-secret" not in repr(known)
        with McpServers(known, tmp_path / "mcp.log", PATIENCE) as servers:
            assert [problem.partition(":")[0] for problem in servers.problems] == ["b"]
            [tool] = servers.tools
            assert servers.call(tool, {"a": 2, "b": 3}, threading.Event()) == "5"
    assert "very-secret" not in (tmp_path / "mcp.log").read_text()
