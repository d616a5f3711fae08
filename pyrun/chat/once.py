"""One question, for scripts. It loads nothing that only a screen needs."""

from __future__ import annotations

from pyrun import console
from pyrun.chat.conversation import Chat
from pyrun.chat.plain import PlainView
from pyrun.errors import UserError
from pyrun.providers.events import ProviderError


def run_once(chat: Chat, question: str) -> None:
    """One turn. What fails raises, so that scripts notice."""
    for problem in chat.servers.problems:
        console.say(f"MCP server {problem}")
    chat.agent.say(chat.with_attachments(question))
    try:
        chat.agent.answer(PlainView())
    except ProviderError as error:
        raise UserError(error.message, "`llama-run providers test` asks them one by one") from error
