"""What a model can call in a chat: our own tools and those of MCP servers, by the same rules."""

from __future__ import annotations

import glob
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyrun.chat.mcp_servers import McpServers, McpTool
from pyrun.errors import UserError
from pyrun.providers.change import add_rule
from pyrun.providers.events import Function, ToolCall
from pyrun.tools.rules import read_rules
from pyrun.tools.tool import ToolError, shortened
from pyrun.tools.toolbox import Toolbox, quoted

ONCE, SESSION, ALWAYS, NO = "once", "session", "always", "no"
SMALL_CONTEXT = 16_384  # tokens; a smaller one would be full of tools
SMALL = ("search_memory",)
GROUPS = {
    "files": (
        *("read_file", "list_directory", "file_exists", "find_files", "search_text"),
        *("write_file", "edit_file", "delete_file"),
    ),
    "commands": ("execute_command",),
    "http": ("http_get", "http_post", "http_put", "http_delete"),
    "json": ("json_parse", "json_validate", "json_query", "json_format"),
    "memory": ("search_memory", "store_memory", "get_fact", "set_fact", "forget_fact"),
}


@dataclass(frozen=True)
class Prepared:
    """A call that makes sense."""

    rule: str  # allows just this, or every call of a tool that says not what it is about
    question: str  # what a person is asked, where one has to be
    needs_consent: bool
    run: Callable[[], str]
    refused: Callable[[str], ToolError]  # writes down that it was not made, and gives what the model is told
    stopped: threading.Event


class Toolset:
    def __init__(
        self, box: Toolbox, servers: McpServers, settings: Path, wanted: str | None, context: int, asker: str = ""
    ) -> None:
        """`wanted` is --tools; `asker` is the provider that talks: it does not ask itself."""
        self.box = box
        self.servers = servers
        self.settings = settings
        self._allowed: list[str] = []  # rules of this session
        self._own = {
            tool.name: Function(tool.name, tool.description, tool.schema)
            for tool in box.tools.values()
            if tool.name != f"ask_{asker}"
        }
        self._remote = {tool.function.name: tool for tool in servers.tools}
        self.functions: tuple[Function, ...] = ()
        self.choose(wanted, context)

    def choose(self, wanted: str | None, context: int) -> None:
        """Which of them the model is told of; in a fixed order, since they stand at the beginning of every prompt."""
        everything = {**self._own, **{name: tool.function for name, tool in self._remote.items()}}
        if wanted is None:
            names = set(SMALL) | set(self._remote) if context < SMALL_CONTEXT else set(everything)
        else:
            names = self._named(wanted, everything)
        self.functions = tuple(function for name, function in everything.items() if name in names)

    def _named(self, wanted: str, everything: dict[str, Function]) -> set[str]:
        names: set[str] = set()
        for word in filter(None, (part.strip() for part in wanted.split(","))):
            if word == "none":
                continue
            group = set(everything) if word == "all" else set(GROUPS.get(word, ()))
            group |= {name for name, tool in self._remote.items() if tool.server == word}
            group |= {name for name in everything if name.startswith("ask_")} if word == "ask" else set()
            found = {word} & set(everything) or group & set(everything)
            if not found:
                raise UserError(f"there is no tool {word!r}", self._hint(word))
            names |= found
        return names

    def _hint(self, word: str) -> str:
        if word in ("commands", "execute_command"):
            return "commands are off: add --commands, or commands = true in [tools] of llama-run.toml"
        return f"there are all, none, {', '.join([*GROUPS, *self.servers.names])}, and the names that /tools lists"

    # A call

    def prepare(self, call: ToolCall) -> Prepared:
        """Raises ToolError where the call makes no sense: the model is told."""
        try:
            arguments = call.parsed()
        except (ValueError, RecursionError) as error:
            raise ToolError(f"the arguments of {call.name} are no JSON object: {error}") from error
        if call.name not in {function.name for function in self.functions}:
            raise ToolError(f"there is no tool {call.name[:100]!r}")
        if call.name in self._remote:
            return self._prepare_remote(self._remote[call.name], arguments)
        pending = self.box.prepare(call.name, arguments)
        needs_consent = pending.needs_consent and not self._allows(call.name, pending.subject)
        return Prepared(
            # An empty subject must not make a rule of the bare name, which would allow every call.
            f"{call.name}:{glob.escape(pending.subject)}" if pending.tool.subject else call.name,
            pending.question,
            needs_consent,
            lambda: self.box.make(pending),
            lambda why: self.box.refuse(pending, why),
            pending.call.stopped,
        )

    def _prepare_remote(self, tool: McpTool, arguments: dict[str, Any]) -> Prepared:
        """What such a server says about its own tools is no reason to trust them: a person or a rule does that."""
        name, stopped = tool.function.name, threading.Event()

        def run() -> str:
            self.box.audit.write(name, arguments, "started", 0)
            return shortened(self.servers.call(tool, arguments, stopped))

        def refused(why: str) -> ToolError:
            self.box.audit.write(name, arguments, "refused", 0, why)
            return ToolError(why)

        details = quoted(json.dumps(arguments, ensure_ascii=False, indent=1))
        allowed = self.box.rules.allows(name, "") or self._allows(name, "")
        return Prepared(name, f"Allow {name}? It gets:{details}", not allowed, run, refused, stopped)

    # Rules

    def _allows(self, name: str, subject: str) -> bool:
        return read_rules(self._allowed).allows(name, subject)

    def allow(self, rule: str, *, always: bool = False) -> None:
        """For this session, or from now on, for the tool server as well."""
        read_rules([rule])
        self._allowed.append(rule)
        if always:
            add_rule(self.settings, rule)

    @property
    def rules(self) -> Sequence[str]:
        fixed = [name if pattern == "*" else f"{name}:{pattern}" for name, pattern in self.box.rules.tools]
        return [*fixed, *self._allowed]
