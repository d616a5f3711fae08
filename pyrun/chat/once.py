"""One question, for scripts. It loads nothing that only a screen needs."""

from __future__ import annotations

from pyrun import console
from pyrun.chat.conversation import Chat
from pyrun.chat.plain import PlainView
from pyrun.errors import UserError
from pyrun.providers.events import ProviderError
from pyrun.tools.tool import ToolError


def run_once(chat: Chat, typed: str, piped: str) -> None:
    """One turn: what was typed, and what stdin brought behind it. What fails raises, so that scripts notice."""
    for problem in chat.servers.problems:
        console.say(f"MCP server {problem}")
    try:
        question = chat.with_attachments(typed, piped)
    except ToolError as error:
        raise UserError(str(error), "@server:uri attaches a resource that the server can read") from error
    chat.agent.say(question)
    try:
        chat.agent.answer(PlainView())
    except ProviderError as error:
        raise UserError(error.message, "`llama-run providers test` asks them one by one") from error
