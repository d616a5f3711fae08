"""A chat as commands and turns see it: who answers, in which session, and what goes along with the next message."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.text import Text as Styled

from pyrun.chat.chain import Link
from pyrun.chat.mcp_servers import McpServers
from pyrun.chat.plain import safe
from pyrun.chat.prompt import choose, room
from pyrun.chat.stats import Totals, totals
from pyrun.chat.turn import Agent, View
from pyrun.errors import UserError
from pyrun.providers.events import ProviderError
from pyrun.providers.known import Provider

ATTACHED = re.compile(r"(?<!\S)@([\w.-]+):(\S+)")
RESUMED_MESSAGES = 4
RESUMED_LINES = 10  # of a question
MAX_FILE_BYTES = 1_000_000
PICTURES = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF")  # how PNG, JPEG, GIF and WebP begin


class Settles(Protocol):
    def stop(self) -> None:
        """Nothing moves on the screen afterwards."""


@dataclass
class Chat:
    """What commands and turns work on."""

    agent: Agent
    servers: McpServers
    known: list[Provider]  # that could be asked as well
    user: str
    console: Console
    attachments: list[str] = field(default_factory=list)
    input: str = ""  # what the next line begins with
    screen: Settles | None = None

    @property
    def link(self) -> Link:
        return self.agent.chain.current

    @property
    def totals(self) -> Totals:
        return totals(row.about for row in self.agent.session.rows)

    def say(self, text: str, style: str = "dim") -> None:
        self.console.print(Styled(safe(text), style=style))

    def complain(self, error: Exception) -> None:
        """Nothing that goes wrong in a turn ends the chat."""
        hint = getattr(error, "hint", None)
        self.say(f"error: {getattr(error, 'message', None) or error}", "red")
        if hint:
            self.say(f"hint: {hint}", "cyan")

    def status(self) -> str:
        link, rows = self.link, self.agent.session.rows
        dropped = set(choose(rows, room(link.context, 0)).dropped)
        n_tokens = sum(row.n_tokens for index, row in enumerate(rows) if index not in dropped)
        left_out = f", {len(dropped)} messages left out" if dropped else ""
        return f" {link.name} · {link.provider.model} · about {n_tokens:,} of {link.context:,} tokens{left_out}"

    def with_attachments(self, typed: str, more: str = "") -> str:
        """What was attached goes along, in front: `/attach FILE` and @server:uri. `more` comes from elsewhere and goes
        behind: whoever wrote that has no say in what is read."""
        parts = list(self.attachments)
        for server, uri in ATTACHED.findall(typed):
            if server in self.servers.names:
                parts.append(f"Resource {uri} of {server}:\n\n{self.servers.read(server, uri)}")
        self.attachments = []  # Not before: a resource that cannot be read must not cost what was attached.
        return "\n\n".join([*parts, *filter(None, (typed, more))])

    def turn(self, view: View) -> None:
        try:
            try:
                self.agent.answer(view)
                self.agent.look_ahead()
            except KeyboardInterrupt:
                self._stopped()
        except (ProviderError, UserError) as error:
            self._settle()
            self.complain(error)
            if self._keeps_question():
                self.say("your message is kept; /retry asks again")
        except BaseException:
            self._settle()
            raise

    def _keeps_question(self) -> bool:
        """Whether the question that has no answer is still on the disk: another program may have taken it away."""
        try:
            self.agent.sessions.ensure(self.agent.session)
        except UserError:
            return False
        return self.agent.session.last_role == "user"

    def _stopped(self) -> None:
        self._settle()
        self.say("stopped")
        if self.agent.session.last_role == "user":
            self.input = self.agent.take_back() or ""

    def show_end(self) -> None:
        """Where a session was left."""
        from pyrun.chat.drawing import draw  # scripts have no use for it, and it takes long to load

        rows = self.agent.session.rows
        spoken = [row for row in rows if row.role in ("user", "assistant") and row.message.get("content")]
        if not spoken:
            return
        if len(spoken) > RESUMED_MESSAGES:
            self.say(f"… {len(spoken) - RESUMED_MESSAGES} earlier messages; /export writes them down")
        for row in spoken[-RESUMED_MESSAGES:]:
            content = safe(str(row.message["content"]))
            if row.role == "user":
                self.console.print(Styled(f"> {_beginning(content)}", style="bold"))
            else:
                for block in draw(content):
                    self.console.print(block)
                self.console.print()
        if rows[-1].role in ("user", "tool"):
            self.say("the last message has no answer; /retry asks for it", "yellow")

    def _settle(self) -> None:
        if self.screen is not None:
            self.screen.stop()


def _beginning(text: str) -> str:
    """What was pasted may be longer than the screen."""
    lines = text.splitlines()
    more = len(lines) - RESUMED_LINES
    return text if more <= 0 else "\n".join([*lines[:RESUMED_LINES], f"… {more:,} more lines"])


def read_file(path: str, most: int = MAX_FILE_BYTES) -> str:
    """A text file that a person named. Raises UserError, OSError or ValueError."""
    data = Path(path).expanduser().read_bytes()
    if data.startswith(PICTURES):
        raise UserError(f"{path} is a picture, and the chat sends text only", "the server's web page takes pictures")
    if len(data) > most:
        raise ValueError(f"it has {len(data):,} bytes; at most {most:,} are taken")
    if b"\0" in data:
        raise ValueError("it is no text")
    return data.decode("utf-8", "replace")
