"""Puts a chat together from what a person asked for, and takes it apart at the end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from pyrun import console as words
from pyrun.agents.endpoint import Endpoint
from pyrun.chat.chain import DEFAULT_CONTEXT, Chain, Link
from pyrun.chat.conversation import Chat
from pyrun.chat.local import Start, counter, local_provider, local_server
from pyrun.chat.mcp_servers import Known, McpServers, read_mcp_json
from pyrun.chat.sessions import Row, Session, Sessions
from pyrun.chat.toolset import Toolset
from pyrun.chat.turn import Agent
from pyrun.errors import UserError
from pyrun.home import Home
from pyrun.memory.intake import take_in
from pyrun.memory.store import Memory
from pyrun.providers.events import Function
from pyrun.providers.known import LOCAL, Provider, find_provider
from pyrun.tools.setup import Setup, load_setup
from pyrun.tools.toolbox import Toolbox

SYSTEM = "You are a helpful assistant. Answer briefly and plainly."


@dataclass(frozen=True)
class Wishes:
    """What a person asked for."""

    start: Start = field(default_factory=Start)
    providers: tuple[str, ...] = (LOCAL,)
    resume: bool = False
    session: str | None = None
    system: Path | None = None
    tools: str | None = None
    allow: tuple[str, ...] = ()
    commands: bool = False
    root: Path | None = None
    mcp: Path | None = None
    user: str | None = None


@contextmanager
def chat(home: Home, wishes: Wishes, console: Console) -> Iterator[Chat]:
    setup = load_setup(
        home,
        os.environ,
        root=wishes.root,
        user=wishes.user,
        allow=wishes.allow,
        commands=wishes.commands,
        protect=[wishes.mcp] if wishes.mcp else [],
    )
    known = [provider for provider in setup.providers if provider.name != LOCAL]
    system = _read_system(wishes.system)
    with ExitStack() as stack:
        toolbox = Toolbox(setup)  # What is wrong with it is said before a model is loaded.
        links, endpoint = _links(home, wishes, known, stack)
        servers = stack.enter_context(McpServers(_servers(home, wishes, setup), home.logs / "mcp.log"))
        toolset = Toolset(toolbox, servers, home.settings, wishes.tools, links[0].context, links[0].name)
        memory = stack.enter_context(Memory(setup.memory, setup.memory_limit))
        take_in(memory)
        sessions = Sessions(memory, setup.user)
        session = _session(sessions, wishes, toolset)
        agent = Agent(sessions, session, Chain(links), toolset, counter(endpoint))
        stack.callback(agent.ahead.stop)
        if not session.rows:
            sessions.append(session, [Row({"role": "system", "content": system}, agent.count(system))])
        yield Chat(agent, servers, known, setup.user, console)


def _read_system(path: Path | None) -> str:
    if path is None:
        return SYSTEM
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}", "--system wants a text file") from error


def _links(home: Home, wishes: Wishes, known: list[Provider], stack: ExitStack) -> tuple[list[Link], Endpoint | None]:
    """In the order of the wishes. A local server that cannot be had is no reason to give up, if there is another."""
    links: list[Link] = []
    endpoint = None
    trouble: UserError | None = None
    for name in wishes.providers:
        if name != LOCAL:
            provider = find_provider(known, name)
            links.append(Link(provider, provider.context or DEFAULT_CONTEXT))
            continue
        try:
            endpoint = stack.enter_context(local_server(home, wishes.start))
            links.append(Link(local_provider(endpoint), endpoint.context))
        except UserError as error:
            if len(wishes.providers) == 1:
                raise
            trouble = error
            words.say(f"{error.message}\ngoing on without it")
    if not links:
        raise trouble or UserError("no provider was named", "--provider local")
    return links, endpoint


def _servers(home: Home, wishes: Wishes, setup: Setup) -> dict[str, Known]:
    """Only files that the person owns say what is started: one that lies in a folder of work may be anybody's."""
    if wishes.mcp is not None and not wishes.mcp.is_file():
        raise UserError(f"there is no file {wishes.mcp}", "--mcp wants a file with mcpServers")
    return {**setup.include, **read_mcp_json(wishes.mcp or home.mcp_servers)}


def _session(sessions: Sessions, wishes: Wishes, toolset: Toolset) -> Session:
    session = sessions.load(wishes.session) if wishes.session else sessions.latest() if wishes.resume else None
    if session is None:
        return sessions.create(toolset.functions)
    if wishes.tools is not None or not _covers(session.tools, toolset.functions):
        sessions.set_tools(session, toolset.functions)
    return session


def _covers(had: list[Function], has: tuple[Function, ...]) -> bool:
    """Whether all there is now was there before: then the prompt stays as it was, also if an MCP server is missing."""
    return all(function in had for function in has)
