"""Other MCP servers, for as long as the chat runs. One that hangs or dies costs its own calls and nothing else.

All of them live in one thread with a loop of its own; the chat waits for them with a deadline, and can stop waiting.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import AbstractContextManager, AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from pyrun.errors import UserError
from pyrun.providers.events import Function
from pyrun.tools.setup import IncludedServer
from pyrun.tools.tool import ToolError

if TYPE_CHECKING:
    import mcp_types as types
    from anyio.from_thread import BlockingPortal
    from mcp import Client

START_SECONDS = 20.0
CALL_SECONDS = 300.0
READ_SECONDS = 30.0
MAX_PAGES = 20
MAX_NAME = 64  # of a tool, for the servers that models are at
SEPARATOR = "__"
VARIABLE = re.compile(r"\$\{(\w+)\}")

T = TypeVar("T")


@dataclass(frozen=True)
class RemoteServer:
    """One that is spoken to by HTTP."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # keys, mostly


Known = IncludedServer | RemoteServer


@dataclass(frozen=True)
class McpTool:
    server: str
    name: str  # as the server calls it
    function: Function


@dataclass
class _Live:
    """A connection, and what ends it. Whoever starts it again holds the lock: calls come from several threads."""

    name: str
    known: Known
    client: Client | None = None
    end: Any = None
    running: Future[None] | None = None
    problem: str = ""
    tools: list[McpTool] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


def read_mcp_json(path: Path) -> dict[str, Known]:
    """The format that most clients share: {"mcpServers": {NAME: {"command", "args", "env"} or {"url", "headers"}}}."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}", 'it should be {"mcpServers": {...}}') from error
    table = content.get("mcpServers") if isinstance(content, dict) else None
    if not isinstance(table, dict):
        raise UserError(f"{path} has no mcpServers", 'it should be {"mcpServers": {...}}')
    return {name: _known(f"{path}: {name}", entry) for name, entry in table.items()}


def _known(where: str, entry: Any) -> Known:
    if isinstance(entry, dict) and isinstance(entry.get("url"), str):
        return RemoteServer(entry["url"], _headers(where, entry.get("headers", {})))
    if not isinstance(entry, dict) or not isinstance(entry.get("command"), str):
        raise UserError(f"{where} names neither a command nor a url", '{"command": "...", "args": [...]}')
    arguments, variables = entry.get("args", []), entry.get("env", {})
    if not isinstance(arguments, list) or not isinstance(variables, dict):
        raise UserError(f"{where}: args is a list and env an object", '{"command": "...", "args": [...], "env": {}}')
    return IncludedServer(entry["command"], tuple(map(str, arguments)), {str(k): str(v) for k, v in variables.items()})


def _headers(where: str, given: Any) -> dict[str, str]:
    """Their values may name variables, so that no key has to be in the file."""
    if not isinstance(given, dict):
        raise UserError(f"{where}: headers is an object", '"headers": {"Authorization": "Bearer ${KEY}"}')

    def value(found: re.Match[str]) -> str:
        if found[1] not in os.environ:
            raise UserError(f"{where}: there is no variable {found[1]}", f"set it: export {found[1]}=...")
        return os.environ[found[1]]

    headers = {str(name): VARIABLE.sub(value, str(text)) for name, text in given.items()}
    for name, text in headers.items():  # a library that refuses one would show it
        if not (text.isascii() and text.isprintable()):
            raise UserError(
                f"{where}: the header {name} has characters that no header may have", "a line break, perhaps?"
            )
    return headers


class McpServers:
    """Use it as a context: all servers start together, and what does not answer in time is reported."""

    def __init__(self, servers: Mapping[str, Known], log: Path, start_seconds: float = START_SECONDS) -> None:
        self._servers = {name: _Live(name, known) for name, known in sorted(servers.items())}
        self._log = log
        self._start_seconds = start_seconds
        self._portal: BlockingPortal | None = None
        self._context: AbstractContextManager[BlockingPortal] | None = None
        self._errors: TextIO | None = None

    def __enter__(self) -> McpServers:
        if self._servers:
            from anyio.from_thread import start_blocking_portal

            self._log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._errors = self._log.open("a", encoding="utf-8")
            self._context = start_blocking_portal()
            self._portal = self._context.__enter__()
            deadline = time.monotonic() + self._start_seconds
            started = [self._start(live) for live in self._servers.values()]
            for live, ready in zip(self._servers.values(), started, strict=True):
                self._await_start(live, ready, deadline)
        return self

    def __exit__(self, *_: object) -> None:
        if self._portal is None or self._context is None:
            return
        for live in self._servers.values():
            self._end(live)
        self._context.__exit__(None, None, None)
        self._portal = None
        if self._errors is not None:
            self._errors.close()

    @property
    def problems(self) -> list[str]:
        return [f"{live.name}: {live.problem}" for live in self._servers.values() if live.problem]

    @property
    def names(self) -> list[str]:
        return list(self._servers)

    @property
    def tools(self) -> list[McpTool]:
        """In a fixed order, so that prompts stay the same."""
        return [tool for live in self._servers.values() for tool in live.tools]

    @property
    def prompts(self) -> list[str]:
        """As a person types them: server:prompt."""
        return [f"{live.name}:{prompt}" for live in self._servers.values() for prompt in live.prompts]

    # What the chat asks for

    def call(self, tool: McpTool, arguments: dict[str, Any], stopped: threading.Event) -> str:
        async def made(client: Client) -> str:
            result = await client.call_tool(tool.name, arguments)
            text = _text(result.content)
            if result.is_error:
                raise ToolError(text or "it failed, without a word")
            return text

        return self._ask(tool.server, made, CALL_SECONDS, stopped)

    def read(self, server: str, uri: str) -> str:
        async def read(client: Client) -> str:
            result = await client.read_resource(uri)
            return "\n".join(getattr(part, "text", None) or f"[{part.mime_type}, no text]" for part in result.contents)

        return self._ask(server, read, READ_SECONDS)

    def resources(self, server: str) -> list[str]:
        async def listed(client: Client) -> list[str]:
            return [str(resource.uri) for resource in (await client.list_resources()).resources]

        return self._ask(server, listed, READ_SECONDS)

    def prompt(self, server: str, name: str, arguments: dict[str, str]) -> str:
        async def got(client: Client) -> str:
            result = await client.get_prompt(name, arguments)
            return "\n\n".join(_text([message.content]) for message in result.messages)

        return self._ask(server, got, READ_SECONDS)

    # Their lives

    def _start(self, live: _Live) -> Future[None]:
        assert self._portal is not None
        ready: Future[None] = Future()
        live.problem = ""
        live.running = self._portal.start_task_soon(self._live, live, ready)
        return ready

    async def _live(self, live: _Live, ready: Future[None]) -> None:
        import anyio
        import httpx2
        from mcp import Client, StdioServerParameters
        from mcp.client.stdio import stdio_client
        from mcp.client.streamable_http import streamable_http_client

        assert self._errors is not None
        live.end = anyio.Event()
        try:
            async with AsyncExitStack() as stack:
                if isinstance(live.known, RemoteServer):
                    timeout = httpx2.Timeout(READ_SECONDS, read=CALL_SECONDS)  # an answer may take as long as a call
                    web = httpx2.AsyncClient(headers=dict(live.known.headers), timeout=timeout)
                    await stack.enter_async_context(web)
                    transport: Any = streamable_http_client(live.known.url, http_client=web)
                else:
                    parameters = StdioServerParameters(
                        command=live.known.command, args=list(live.known.arguments), env=dict(live.known.environment)
                    )
                    transport = stdio_client(parameters, errlog=self._errors)
                client = await stack.enter_async_context(Client(transport))
                live.tools = await _tools(live.name, client)
                live.prompts = await _prompts(client)
                live.client = client
                ready.set_result(None)
                await live.end.wait()
        except Exception as error:  # what breaks a connection comes in groups of several kinds
            live.problem = f"it could not be started: {_first(error)}"
        finally:
            live.client = None
            if not ready.done():
                ready.set_result(None)

    def _await_start(self, live: _Live, ready: Future[None], deadline: float) -> None:
        try:
            ready.result(max(0.0, deadline - time.monotonic()))
        except FutureTimeoutError:
            live.problem = f"it did not answer within {self._start_seconds:.0f} s, and is left out"
            self._end(live)

    def _end(self, live: _Live) -> None:
        assert self._portal is not None
        if live.running is None:
            return
        if live.client is not None and live.end is not None:
            self._portal.call(live.end.set)
        else:
            live.running.cancel()
        with suppress(FutureTimeoutError, CancelledError, Exception):
            live.running.result(5)

    def _ask(
        self,
        server: str,
        question: Callable[[Client], Awaitable[T]],
        seconds: float,
        stopped: threading.Event | None = None,
    ) -> T:
        live = self._servers.get(server)
        if live is None or self._portal is None:
            raise ToolError(f"there is no MCP server {server!r} in this chat")
        with live.lock:
            if live.client is None:
                self._restart(live)
            client = live.client
        if client is None:
            raise ToolError(f"{server} does not run: {live.problem}")

        async def asked() -> T:
            return await question(client)

        future = self._portal.start_task_soon(asked)
        try:
            return self._wait(future, server, seconds, stopped)
        except ToolError:
            raise
        except Exception as error:
            if not _is_closed(error):
                raise ToolError(f"{server}: {_told(error)}") from error
            with live.lock:
                if live.client is client:  # nobody else was faster
                    self._end(live)
                    self._restart(live)
            what = "it was started again" if live.client is not None else live.problem
            raise ToolError(f"{server} died during the call, which may have been made or not; {what}") from error

    def _wait(self, future: Future[T], server: str, seconds: float, stopped: threading.Event | None) -> T:
        deadline = time.monotonic() + seconds
        while True:
            try:
                return future.result(0.2)
            except FutureTimeoutError:
                if future.done():
                    raise ToolError(f"{server} gave up: its time was over") from None
                if stopped is not None and stopped.is_set():
                    future.cancel()
                    raise ToolError("the call was stopped") from None
                if time.monotonic() > deadline:
                    future.cancel()
                    raise ToolError(f"{server} did not answer within {seconds:.0f} s") from None

    def _restart(self, live: _Live) -> None:
        """Its tools stay as they were told first: a prompt that has them must not change."""
        tools = live.tools
        ready = self._start(live)
        self._await_start(live, ready, time.monotonic() + self._start_seconds)
        live.tools = tools or live.tools


async def _tools(server: str, client: Client) -> list[McpTool]:
    found: list[types.Tool] = []
    cursor = None
    if client.server_capabilities.tools is None:
        return []
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        cursor = page.next_cursor
        if not cursor:
            break
    return [
        McpTool(server, tool.name, Function(_tool_name(server, tool.name), tool.description or "", tool.input_schema))
        for tool in sorted(found, key=lambda tool: tool.name)
    ]


async def _prompts(client: Client) -> list[str]:
    if client.server_capabilities.prompts is None:
        return []
    return sorted(prompt.name for prompt in (await client.list_prompts()).prompts)


def _tool_name(server: str, tool: str) -> str:
    """Servers of models take letters, digits, _ and - only."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", f"{server}{SEPARATOR}{tool}")[:MAX_NAME]


def _text(content: list[Any]) -> str:
    return "\n".join(_part(part) for part in content)


def _part(part: Any) -> str:
    text = getattr(part, "text", None) or getattr(getattr(part, "resource", None), "text", None)
    return text if isinstance(text, str) else f"[{getattr(part, 'type', 'something')}, no text]"


def _is_closed(error: BaseException) -> bool:
    """Whether nobody is there any more. An answer that says no is an answer, and so is one that is wrong."""
    import anyio
    import httpx2
    from mcp import MCPError
    from mcp_types import CONNECTION_CLOSED

    first = _first(error)
    if isinstance(first, MCPError):
        return first.code == CONNECTION_CLOSED
    return isinstance(first, OSError | anyio.ClosedResourceError | anyio.BrokenResourceError | httpx2.TransportError)


def _told(error: BaseException) -> str:
    """What the server said, or that what it said is none of what it promised."""
    from mcp import MCPError

    first = _first(error)
    return str(first) if isinstance(first, MCPError) else f"the call was made; its result is invalid: {first}"


def _first(error: BaseException) -> BaseException:
    inner = getattr(error, "exceptions", None)
    return _first(inner[0]) if inner else error
