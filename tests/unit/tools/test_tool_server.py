"""The tool server over stdio: the official client in both ages of the protocol, and a client of the oldest by hand."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio
import mcp_types as types
import psutil
import pytest
from helpers import ROOT, wait_until
from mcp import Client, StdioServerParameters
from mcp_types.version import LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION
from tool_fixtures import Bench, web_server

from pyrun.memory.spool import Record, write_spool
from pyrun.memory.store import key_of_user

T = TypeVar("T")

# The age with a handshake, and the one without.
AGES = [("legacy", LATEST_HANDSHAKE_VERSION), ("auto", LATEST_MODERN_VERSION)]


def command(bench: Bench, *flags: str) -> list[str]:
    """The tool server with a clone of its own, so that its log and settings are the test's."""
    pin = bench.folder / "llama.cpp" / "upstream.toml"
    pin.parent.mkdir(exist_ok=True)
    pin.write_bytes((ROOT / "llama.cpp" / "upstream.toml").read_bytes())
    return [sys.executable, "-m", "pyrun", "tools", "--root", str(bench.work), *flags]


def environment(bench: Bench) -> dict[str, str]:
    return {**os.environ, "LLAMA_RUN_HOME": str(bench.folder)}


def talk(bench: Bench, mode: str, conversation: Callable[[Client], Awaitable[T]], *flags: str, person: Any = None) -> T:
    words = command(bench, *flags)
    server = StdioServerParameters(command=words[0], args=words[1:], env=environment(bench), cwd=ROOT)

    async def run() -> T:
        with anyio.fail_after(400):
            async with Client(server, mode=mode, elicitation_callback=person) as client:
                return await conversation(client)

    return anyio.run(run)


def text_of(result: types.CallToolResult) -> str:
    return "".join(part.text for part in result.content if isinstance(part, types.TextContent))


@pytest.mark.parametrize(("mode", "version"), AGES)
def test_tools_are_listed_called_refused_and_fail_clearly_in_both_ages(mode: str, version: str, bench: Bench) -> None:
    (bench.folder / "llama-run.toml").write_text(
        f"[tools.include.notes]\ncommand = {json.dumps(sys.executable)}\n"
        f"args = [{json.dumps(str(ROOT / 'tests/fakes/resource_server.py'))}]\n"
    )

    async def conversation(client: Client) -> None:
        assert client.protocol_version == version
        assert client.server_info is not None
        assert client.server_info.name == "llama-run"
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert {"read_file", "search_memory", "http_get", "json_query", "read_resource"} <= set(listed)
        assert "execute_command" not in listed
        assert listed["read_file"].input_schema["required"] == ["path"]
        hints = [listed[name].annotations for name in ("read_file", "write_file")]
        assert [hint and hint.read_only_hint for hint in hints] == [True, False]

        result = await client.call_tool("read_file", {"path": "inside.txt"})
        assert (result.is_error, text_of(result)) == (False, "1\tinside")
        for name, arguments in (("read_file", {"path": "../outside/secret.txt"}), ("read_file", {}), ("nothing", {})):
            result = await client.call_tool(name, arguments)
            assert result.is_error
            assert text_of(result) != ""

        # What left a conversation is found, and what is set.
        assert "Rosinante" in text_of(await client.call_tool("search_memory", {"query": "what is my bicycle called"}))
        await client.call_tool("set_fact", {"name": "colour", "value": "red"})
        assert text_of(await client.call_tool("get_fact", {"name": "colour"})).startswith("red")

        # Nobody is there who could be asked.
        result = await client.call_tool("write_file", {"path": "a.txt", "content": "x"})
        assert result.is_error
        assert "--allow write_file" in text_of(result)

        resources = await client.call_tool("list_resources", {"server": "notes"})
        assert text_of(resources) == "note://one\tnote\nnote://image\timage"
        for uri, expected in (("note://one", "the note"), ("note://image", "[image/png, no text]")):
            read = await client.call_tool("read_resource", {"server": "notes", "uri": uri})
            assert text_of(read) == expected
        missing = await client.call_tool("read_resource", {"server": "notes", "uri": "note://none"})
        assert missing.is_error

        # Several at once, each with its own answer.
        found: list[str] = []

        async def ask(number: int) -> None:
            answer = await client.call_tool("json_query", {"text": f"[{number}]", "path": "[0]"})
            found.append(text_of(answer))

        async with anyio.create_task_group() as group:
            for number in range(10):
                group.start_soon(ask, number)
        assert sorted(found) == [str(n) for n in range(10)]

    told = Record(3, {"role": "user", "content": "My bicycle is called Rosinante."})
    write_spool(bench.folder / "memory" / "spool", key_of_user(""), "00000000000000aa", [told])
    talk(bench, mode, conversation)
    assert not (bench.work / "a.txt").exists()
    assert bench.log.stat().st_mode & 0o777 == 0o600


class Person:
    """Says what it is told to, and remembers what it was asked."""

    def __init__(self, *answers: types.ElicitResult) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, _: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        self.asked.append(params.message)
        return self.answers.pop(0)


YES = types.ElicitResult(action="accept", content={"allow": True})
NOT_QUITE = types.ElicitResult(action="accept", content={"allow": False})
NO = types.ElicitResult(action="decline")
GONE = types.ElicitResult(action="cancel")


@pytest.mark.parametrize(("mode", "version"), AGES)
def test_a_person_is_asked_and_what_they_say_counts(mode: str, version: str, bench: Bench) -> None:
    person = Person(YES, NOT_QUITE, NO, GONE)

    async def conversation(client: Client) -> None:
        assert client.protocol_version == version
        result = await client.call_tool("write_file", {"path": "allowed.txt", "content": "new content"})
        assert not result.is_error
        for number in range(3):
            result = await client.call_tool("write_file", {"path": f"refused{number}.txt", "content": "x"})
            assert result.is_error
            assert "did not allow" in text_of(result)
        # Nobody is asked where a rule allows it, nor where nothing is changed.
        assert not (await client.call_tool("delete_file", {"path": "inside.txt"})).is_error
        assert not (await client.call_tool("list_directory", {})).is_error

    talk(bench, mode, conversation, "--allow", "delete_file:inside.*", person=person)
    assert sorted(path.name for path in bench.work.iterdir()) == ["allowed.txt"]
    assert len(person.asked) == 4
    assert "write_file" in person.asked[0]
    assert "allowed.txt" in person.asked[0]
    assert "new content" in person.asked[0]
    outcomes = [entry["outcome"] for entry in bench.calls() if entry["tool"] == "write_file"]
    assert outcomes == ["asked", "started", "done", *["asked", "refused"] * 3]


@pytest.mark.parametrize("mode", [mode for mode, _ in AGES])
def test_a_question_that_is_never_answered_is_written_down(mode: str, bench: Bench) -> None:
    """The client takes its call back while the person thinks, or never comes back with what they say."""

    asked = anyio.Event()

    async def person(*_: Any) -> None:
        asked.set()
        await anyio.sleep_forever()

    async def conversation(client: Client) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(client.call_tool, "write_file", {"path": "a.txt", "content": "x"})
            await asked.wait()
            group.cancel_scope.cancel()
        await client.list_tools()

    talk(bench, mode, conversation, person=person)
    assert [(entry["tool"], entry["outcome"]) for entry in bench.calls()] == [("write_file", "asked")]
    assert not (bench.work / "a.txt").exists()


def test_consent_to_one_call_is_not_consent_to_another(bench: Bench) -> None:
    async def conversation(client: Client) -> None:
        async def ask(path: str, state: str | None = None) -> types.CallToolResult | types.InputRequiredResult:
            responses: Any = {"consent": YES} if state else None
            return await client.session.call_tool(
                "write_file",
                {"path": path, "content": "x"},
                input_responses=responses,
                request_state=state,
                allow_input_required=True,
            )

        first = await ask("harmless.txt")
        assert isinstance(first, types.InputRequiredResult)
        other = await ask("other.txt", first.request_state)
        assert isinstance(other, types.InputRequiredResult)
        again = await ask("harmless.txt", first.request_state)
        assert isinstance(again, types.InputRequiredResult), "a state was good for two calls"
        made_up = await ask("harmless.txt", "0" * 32)
        assert isinstance(made_up, types.InputRequiredResult)
        done = await ask("harmless.txt", made_up.request_state)
        assert isinstance(done, types.CallToolResult)
        assert not done.is_error

    talk(bench, "auto", conversation, person=Person())
    assert sorted(path.name for path in bench.work.iterdir()) == ["harmless.txt", "inside.txt"]


class OldClient:
    """JSON-RPC lines, as a client of 2024-11-05 sends them."""

    def __init__(self, bench: Bench, *flags: str) -> None:
        self.process = subprocess.Popen(
            command(bench, *flags),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(bench),
            cwd=ROOT,
            text=True,
        )
        self.number = 0

    def send(self, method: str, params: dict[str, Any] | None = None, *, answer: bool = True) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params or {}}
        if answer:
            self.number += 1
            message["id"] = self.number
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()
        if not answer:
            return None
        told = json.loads(self.process.stdout.readline())
        assert told["id"] == self.number
        return told

    def start_call(self, name: str, arguments: dict[str, Any]) -> None:
        """Its answer is not waited for."""
        assert self.process.stdin is not None
        call = {
            "jsonrpc": "2.0",
            "id": "call",
            "method": "tools/call",
            "params": {"name": name, "arguments": arguments},
        }
        self.process.stdin.write(json.dumps(call) + "\n")
        self.process.stdin.flush()

    def begin(self) -> dict[str, Any]:
        info = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "old", "version": "1"}}
        result: dict[str, Any] = self.send("initialize", info)["result"]
        self.send("notifications/initialized", answer=False)
        return result

    def end(self) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        code = self.process.wait(30)
        self.process.stdout.close()
        return code


def test_a_client_of_the_oldest_protocol_is_served(bench: Bench) -> None:
    client = OldClient(bench)
    try:
        result = client.begin()
        assert result["protocolVersion"] == "2024-11-05"
        assert "tools" in result["capabilities"]
        assert client.send("ping")["result"] == {}
        tools = client.send("tools/list")["result"]["tools"]
        assert all(set(tool) >= {"name", "description", "inputSchema"} for tool in tools)
        assert all(tool["inputSchema"]["type"] == "object" for tool in tools)
        answer = client.send("tools/call", {"name": "read_file", "arguments": {"path": "inside.txt"}})["result"]
        assert answer["content"] == [{"type": "text", "text": "1\tinside"}]
        refused = client.send("tools/call", {"name": "write_file", "arguments": {"path": "a", "content": "x"}})[
            "result"
        ]
        assert refused["isError"] is True
        assert "nobody can be asked" in refused["content"][0]["text"]
        assert "error" in client.send("no/such/method")
        assert "error" in client.send("tools/call", {"arguments": {}})
        half = client.send("tools/call", {"name": "json_query", "arguments": {"text": '["\\ud800"]', "path": "[0]"}})
        assert half["result"]["content"][0]["text"] == '"?"'
    finally:
        assert client.end() == 0


def running(mark: str) -> bool:
    return any(mark in (process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"]))


@pytest.mark.skipif(sys.platform != "linux", reason="a parent's death is told on Linux only")
@pytest.mark.parametrize("end", ["is killed", "is left by its client"])
def test_a_tool_server_that_ends_leaves_no_command_behind(end: str, bench: Bench) -> None:
    client = OldClient(bench, "--commands", "--allow", "execute_command")
    client.begin()
    mark = f"87654.{os.getpid()}{len(end)}"
    client.start_call("execute_command", {"command": f"setsid sleep {mark} & sleep {mark}", "timeout": 500})
    wait_until(lambda: running(mark), 30, "the command runs")
    if end == "is killed":
        client.process.send_signal(signal.SIGKILL)
    client.end()
    wait_until(lambda: not running(mark), 30, "the command is gone")
    assert bench.calls()[0]["outcome"] == "started"


@pytest.mark.parametrize(
    ("end", "outcomes"), [("is killed", ["started"]), ("is left by its client", ["started", "failed"])]
)
def test_a_tool_server_that_ends_waits_for_no_request_and_has_written_it_down(
    end: str, outcomes: list[str], bench: Bench
) -> None:
    with web_server() as web:
        client = OldClient(bench, "--allow", f"address:127.0.0.1:{web.server_port}")
        client.begin()
        url = f"http://127.0.0.1:{web.server_port}/drip?data"
        client.start_call("http_get", {"url": url, "timeout": 300})
        wait_until(lambda: bool(web.seen), 30, "the request has arrived")  # type: ignore[attr-defined]
        if end == "is killed":
            client.process.send_signal(signal.SIGKILL)
        client.end()
    assert [entry["outcome"] for entry in bench.calls()] == outcomes
    assert bench.calls()[0]["arguments"]["url"] == url
