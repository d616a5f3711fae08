"""A turn without a screen: the answer goes to stdout as it comes, everything else to stderr."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Sequence

from pyrun import console
from pyrun.chat.chain import Link
from pyrun.chat.stats import Answer
from pyrun.chat.toolset import NO, Prepared
from pyrun.errors import UserError
from pyrun.providers.events import ToolCall

# Letters and pictures of many languages are joined or kept apart by these, which python does not call printable.
JOINERS = "\u200b\u200c\u200d"


def safe(text: str) -> str:
    """Text that a terminal shows and does not obey."""
    return "".join(c if _is_harmless(c) else "\N{REPLACEMENT CHARACTER}" for c in text if c != "\r")


def _is_harmless(character: str) -> bool:
    return character.isprintable() or character in "\n\t" + JOINERS or unicodedata.category(character) == "Zs"


class PlainView:
    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._wrote = False  # in this answer
        self._ends_line = True

    def text(self, text: str) -> None:
        self._wrote = True
        self._ends_line = text.endswith("\n")
        data = (safe(text) if self._is_terminal else text).encode("utf-8", "replace")
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def begins(self, link: Link) -> None:
        self._wrote = False

    def progress(self, done: int, total: int) -> None:
        pass

    def takes_back(self) -> None:
        """What a pipe has got cannot be taken back; a second answer behind it would be taken for one with it."""
        if self._wrote:
            self._end_line()
            raise UserError("the answer broke off: what was printed is not all of it", "run it again")

    def reasoning(self, text: str) -> None:
        pass

    def note(self, text: str) -> None:
        console.say(text)

    def calls(self, calls: Sequence[ToolCall]) -> None:
        self._end_line()

    def running(self, call: ToolCall, seconds: float) -> None:
        pass

    def result(self, call: ToolCall, result: str, failed: bool) -> None:
        first = console.printable(result.partition("\n")[0])[:200]
        console.say(f"{call.name}: {'failed: ' if failed else ''}{first}")

    def answered(self, answer: Answer) -> None:
        self._end_line()

    def may(self, call: ToolCall, prepared: Prepared) -> str:
        console.say(f"refused: nobody can be asked about {call.name}; allow it: --allow {call.name}")
        return NO

    def _end_line(self) -> None:
        if not self._ends_line:
            sys.stdout.buffer.write(b"\n")
            sys.stdout.buffer.flush()
            self._ends_line = True
