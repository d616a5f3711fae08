"""All tools together: a call is checked, decided on, made and written down here, whoever it comes from."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

import jsonschema

from pyrun.console import printable
from pyrun.errors import UserError
from pyrun.tools.ask_tools import ask_tools
from pyrun.tools.audit import Audit
from pyrun.tools.commands import CommandTool
from pyrun.tools.files import FileTools
from pyrun.tools.http import HttpTools
from pyrun.tools.included import ResourceTools
from pyrun.tools.json_tools import json_tools
from pyrun.tools.memory_tools import MemoryTools
from pyrun.tools.root import Root
from pyrun.tools.rules import read_rules
from pyrun.tools.setup import Setup
from pyrun.tools.tool import Call, Tool, ToolError, shortened

MAX_SHOWN = 1_500  # characters of an argument, where a person is asked


@dataclass(frozen=True)
class Pending:
    """A call that makes sense. If it needs consent, a person has to say yes before it is made."""

    tool: Tool
    call: Call
    subject: str
    needs_consent: bool

    @property
    def question(self) -> str:
        """What a person is shown. Nothing in it can pass for our own words, and what is cut is told."""
        details = {name: value for name, value in self.call.arguments.items() if name != self.tool.subject}
        shown = "".join(f"\n{name}:{quoted(value)}" for name, value in details.items())
        return f"Allow {self.tool.name}? It concerns:{quoted(self.subject)}{shown}"


class Toolbox:
    def __init__(self, setup: Setup) -> None:
        self.rules = read_rules(setup.allow)
        self.audit = Audit(setup.logs)
        root = Root(setup.root, setup.protected)
        http = HttpTools(self.rules).tools()
        asking = [*ask_tools(setup.providers), *ResourceTools(setup.include).tools()]
        everything = [
            *FileTools(root).tools(),
            *(CommandTool(root).tools() if setup.commands else []),
            *http,
            *json_tools(),
            *MemoryTools(setup.memory, setup.memory_limit, setup.user).tools(),
            *asking,
        ]
        self.tools = {tool.name: tool for tool in everything}
        self.sending = {tool.name for tool in (*http, *asking)}  # something to somebody else, if only a question

    def prepare(self, name: str, arguments: dict[str, Any]) -> Pending:
        """Raises ToolError where the call makes no sense; that is written down as well."""
        try:
            tool = self.tools.get(name)
            if tool is None:
                hint = "; commands are off: start with --commands" if name == "execute_command" else ""
                raise ToolError(f"there is no tool {name[:100]!r}{hint}")
            _check_arguments(tool, arguments)
            subject, call = tool.settled(Call(arguments))
        except Exception as error:
            self.audit.write(name[:100], arguments, "refused", 0, _told(error))
            raise ToolError(_told(error)) from error
        return Pending(tool, call, subject, tool.changes and not self.rules.allows(name, subject))

    def ask(self, pending: Pending) -> str:
        """The question for a person. The log knows of it before: they may never answer."""
        self.audit.write(pending.tool.name, pending.call.arguments, "asked", 0)
        return pending.question

    def refuse(self, pending: Pending, why: str) -> ToolError:
        self.audit.write(pending.tool.name, pending.call.arguments, "refused", 0, why)
        return ToolError(why)

    def make(self, pending: Pending) -> str:
        """Makes the call. The log knows of what changes or sends something before it is made, and of every end that a
        call comes to. Raises OSError where the former cannot be written down; what was done is told, whether its end
        can be or not."""
        if pending.tool.changes or pending.tool.name in self.sending:
            self.audit.write(pending.tool.name, pending.call.arguments, "started", 0)
        begin = time.monotonic()
        try:
            result = shortened(pending.tool.run(pending.call)).encode("utf-8", "replace").decode("utf-8")
        except BaseException as error:
            note = self._write_end(pending, "failed", begin, _told(error))
            if not isinstance(error, Exception):
                raise  # somebody ends the program
            raise ToolError(_told(error) + note) from error
        return result + self._write_end(pending, "done", begin)

    def _write_end(self, pending: Pending, outcome: str, begin: float, detail: str = "") -> str:
        """What the result has to say about it."""
        try:
            self.audit.write(pending.tool.name, pending.call.arguments, outcome, time.monotonic() - begin, detail)
        except OSError as error:
            return f"\n[the call was made, but {self.audit.path} does not say how it ended: {error.strerror or error}]"
        return ""


def _check_arguments(tool: Tool, arguments: dict[str, Any]) -> None:
    wrong = jsonschema.Draft202012Validator(tool.schema).iter_errors(arguments)
    for error in wrong:
        raise ToolError(f"{tool.name}: {error.json_path}: {error.message[:500]}")


def _told(error: BaseException) -> str:
    if isinstance(error, ToolError):
        return str(error)
    if isinstance(error, UserError):
        return f"{error.message}; {error.hint}" if error.hint else error.message
    if isinstance(error, OSError):
        return str(error.strerror or error)
    return f"it came to an end that nobody foresaw: {repr(error)[:MAX_SHOWN]}"


def quoted(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    lines = text[:MAX_SHOWN].splitlines() or [""]
    more = f"\n  (and {len(text) - MAX_SHOWN:,} more characters)" if len(text) > MAX_SHOWN else ""
    return "".join(f"\n  | {printable(line)}" for line in lines) + more
