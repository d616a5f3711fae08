"""A chat in a terminal: what is typed becomes a command or a turn, until the person leaves."""

from __future__ import annotations

from pyrun.chat import commands
from pyrun.chat.conversation import Chat
from pyrun.chat.reader import Reader
from pyrun.chat.screen import Screen
from pyrun.errors import UserError
from pyrun.tools.tool import ToolError

HELP = "Enter sends, Alt-Enter or \\ begins a new line, Ctrl-C stops an answer, Ctrl-D leaves; /help lists the rest"


def run_interactive(chat: Chat) -> None:
    session = chat.agent.session
    reader = Reader(chat.agent.sessions.said(), lambda: commands.names(chat.servers), chat.servers.names)
    screen = Screen(chat.console, lambda call, prepared: reader.choose(), chat.totals)
    chat.screen = screen
    chat.say(f"{chat.link.name}: {chat.link.provider.model} · session {session.name[:8]}\n{HELP}")
    for problem in chat.servers.problems:
        chat.say(f"MCP server {problem}", "yellow")
    chat.show_end()
    while True:
        try:
            line = reader.read(_taken(chat), chat.status())
        except EOFError:
            return
        except KeyboardInterrupt:
            chat.say("Ctrl-D or /quit leaves")
            continue
        try:
            with reader.typed_ahead.kept():
                _handle(chat, line, screen)
        except commands.LeaveError:
            return
        except KeyboardInterrupt:
            chat.say("stopped")
        except (UserError, ToolError, OSError, ValueError) as error:
            chat.complain(error)


def _taken(chat: Chat) -> str:
    text, chat.input = chat.input, ""
    return text


def _handle(chat: Chat, line: str, screen: Screen) -> None:
    if not line:
        return
    if commands.is_command(line):
        if not commands.run(chat, line):
            return
    else:
        chat.agent.say(chat.with_attachments(line))
    chat.turn(screen)
    chat.console.print()
