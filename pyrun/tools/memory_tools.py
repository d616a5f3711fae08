"""Tools for the memory of the one user that the tool server works for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyrun.memory.intake import take_in
from pyrun.memory.recall import Found, UserMemory
from pyrun.memory.store import Memory
from pyrun.tools.tool import Call, Tool, number, text

SOURCE = "tool"
MAX_TEXT = 4_000


class MemoryTools:
    def __init__(self, folder: Path, limit: int, user: str) -> None:
        self.folder = folder
        self.limit = limit
        self.user = user

    def tools(self) -> list[Tool]:
        name = text("The fact's name, such as home town.", maxLength=200)
        return [
            Tool(
                "search_memory",
                "Search what was said earlier and has left the conversation, what was stored, and the facts.",
                {"query": text("Words to look for."), "limit": number("How many at most (10 if left out).", 1, 50)},
                self.search,
                ("query",),
            ),
            Tool(
                "store_memory",
                "Remember a question with its answer.",
                {"question": text("What it is about."), "answer": text("What to remember.")},
                self.store,
                ("question", "answer"),
            ),
            Tool("get_fact", "Get a fact by its name; without one, get all names.", {"name": name}, self.get_fact),
            Tool(
                "set_fact",
                "Remember a fact under a name, in place of what it was.",
                {"name": name, "value": text("What it is.")},
                self.set_fact,
                ("name", "value"),
            ),
            Tool("forget_fact", "Forget a fact.", {"name": name}, self.forget_fact, ("name",)),
        ]

    @contextmanager
    def _own(self) -> Iterator[UserMemory]:
        """Opened for each call: calls come from several threads."""
        with Memory(self.folder, self.limit) as memory:
            take_in(memory)
            yield UserMemory(memory, self.user)

    def search(self, call: Call) -> str:
        with self._own() as own:
            found = own.search(call.text("query"), call.number("limit", 10))
        return "\n\n".join(_told(one) for one in found) or "nothing was found"

    def store(self, call: Call) -> str:
        with self._own() as own:
            new = own.store(call.text("question"), call.text("answer"), SOURCE)
        return "it is remembered" if new else "it was known already"

    def get_fact(self, call: Call) -> str:
        with self._own() as own:
            if not call.text("name"):
                return "\n".join(fact.text for fact in own.facts()) or "no facts are known"
            fact = own.fact(call.text("name"))
        return (
            f"{fact.answer}\n[{_when(fact.at)}, from {fact.source or 'unknown'}]" if fact else "no such fact is known"
        )

    def set_fact(self, call: Call) -> str:
        with self._own() as own:
            own.set_fact(call.text("name"), call.text("value"), SOURCE)
        return "it is remembered"

    def forget_fact(self, call: Call) -> str:
        with self._own() as own:
            return "it is forgotten" if own.forget_fact(call.text("name")) else "no such fact is known"


def _told(found: Found) -> str:
    entry = found.entry
    title = {
        "message": f"said by {entry.role or 'somebody'}, message {entry.seq} of conversation {entry.conversation}",
        "pair": f"stored: {entry.text[:MAX_TEXT]}",
        "fact": f"fact {entry.text}",
    }[entry.kind]
    whole = entry.answer or entry.text
    return f"[{title}, {_when(entry.at)}]\n{whole if len(whole) <= MAX_TEXT else found.snippet}"


def _when(at_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at_ms / 1000))
