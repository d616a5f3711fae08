"""A chat without a screen: an agent over stand-ins, and a view that writes down what it is told."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fakes.dialects import MODEL
from fakes.model_server import ModelServer
from helpers import ROOT
from tool_fixtures import Bench

from pyrun.chat.chain import Chain, Link
from pyrun.chat.local import counter
from pyrun.chat.mcp_servers import Known, McpServers
from pyrun.chat.prompt import estimate
from pyrun.chat.sessions import Row, Session, Sessions
from pyrun.chat.stats import Answer
from pyrun.chat.toolset import NO, ONCE, Prepared, Toolset
from pyrun.chat.turn import Agent, Limits
from pyrun.memory.store import Memory
from pyrun.providers.events import ToolCall
from pyrun.providers.known import Provider

KEY = "sk-very-secret-5678"


@dataclass
class Recorder:
    """A view that remembers. `says` is what the person answers to questions."""

    says: str = ONCE
    progressed: list[tuple[int, int]] = field(default_factory=list)
    shown: str = ""
    thought: str = ""
    notes: list[str] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)
    results: list[tuple[str, str, bool]] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    taken_back: int = 0
    on_text: Callable[[], None] = lambda: None
    on_running: Callable[[], None] = lambda: None

    def begins(self, link: Link) -> None:
        self.shown = self.thought = ""

    def takes_back(self) -> None:
        self.taken_back += 1

    def note(self, text: str) -> None:
        self.notes.append(text)

    def progress(self, done: int, total: int) -> None:
        self.progressed.append((done, total))

    def text(self, text: str) -> None:
        self.shown += text
        self.on_text()

    def reasoning(self, text: str) -> None:
        self.thought += text

    def calls(self, calls: Sequence[ToolCall]) -> None:
        pass

    def running(self, call: ToolCall, seconds: float) -> None:
        self.on_running()

    def result(self, call: ToolCall, result: str, failed: bool) -> None:
        self.results.append((call.name, result, failed))

    def answered(self, answer: Answer) -> None:
        self.answers.append(answer)

    def may(self, call: ToolCall, prepared: Prepared) -> str:
        self.questions.append(prepared.question)
        assert self.says in (NO, ONCE, "session", "always")
        return self.says


def link(server: ModelServer, name: str = "one", protocol: str = "openai", **more: Any) -> Link:
    url = server.url if protocol == "anthropic" else f"{server.url}/v1"
    return Link(Provider(name, url, protocol, MODEL, **more), more.pop("context", None) or 8_192)


class Desk:
    """Everything that an agent needs, in a folder of its own. It can be closed and opened again, as a chat is."""

    def __init__(self, bench: Bench, links: list[Link], *allow: str, **more: Any) -> None:
        self.bench = bench
        self.view = Recorder()
        self._stack = ExitStack()
        self._memory = self._stack.enter_context(Memory(bench.folder / "memory"))
        servers: dict[str, Known] = more.pop("servers", {})
        seconds: float = more.pop("start_seconds", 20.0)
        self.servers = self._stack.enter_context(McpServers(servers, bench.folder / "logs" / "mcp.log", seconds))
        self.sessions = Sessions(self._memory, "")
        box = bench.box(*allow)
        toolset = Toolset(box, self.servers, bench.folder / "llama-run.toml", more.pop("tools", "all"), 100_000)
        endpoint = more.pop("endpoint", None)
        session: Session | None = self.sessions.latest() if more.pop("resume", False) else None
        if session is None:
            session = self.sessions.create(toolset.functions)
            self.sessions.append(session, [Row({"role": "system", "content": "Be brief."}, 10)])
        self.waits: list[float] = []
        chain = Chain(links, self.waits.append)
        count = counter(endpoint) if endpoint else estimate
        self.agent = Agent(self.sessions, session, chain, toolset, count, more.pop("limits", Limits()))

    def __enter__(self) -> Desk:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [row.message for row in self.agent.session.rows]

    def ask(self, text: str) -> str:
        self.agent.say(text)
        self.agent.answer(self.view)
        return str(self.messages[-1]["content"])


def home_in(folder: Path, root: Path) -> dict[str, str]:
    """A home of its own, with the parts of the clone that the launcher needs."""
    for name in ("llama.cpp", "models", "pyrun"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in ("llama.cpp/upstream.toml", "llama.cpp/build", "models/built-in", "pyrun/web"):
        if not (folder / name).is_symlink():  # in a new clone it may lead nowhere yet
            (folder / name).symlink_to(root / name)
    return {"LLAMA_RUN_HOME": str(folder)}


def environment(folder: Path, server: ModelServer) -> dict[str, str]:
    """`local` is the stand-in, `cloud` is it, too, with a key."""
    more = {"LLAMA_ARG_PORT": str(server.server_port), "CLOUD_KEY": KEY}
    (folder / "llama-run.toml").write_text(
        f'[providers.cloud]\nbase_url = "{server.url}/v1"\nmodel = "m"\nkey_env = "CLOUD_KEY"\n'
        '[providers.gone]\nbase_url = "http://127.0.0.1:1/v1"\nmodel = "m"\nkey_env = "CLOUD_KEY"\n'
    )
    return {**os.environ, **home_in(folder, ROOT), **more, "PYTHONPATH": str(ROOT)}
