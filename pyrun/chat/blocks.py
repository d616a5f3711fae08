"""Cuts a stream of markdown into blocks that no longer change, so that each is drawn for good just once."""

from __future__ import annotations

import re
from dataclasses import dataclass

FENCE = re.compile(r" {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)")
CODE_LINES = 20  # of a long piece of code that are shown at once


@dataclass(frozen=True)
class Block:
    text: str
    language: str | None = None  # of code; None for markdown
    goes_on: bool = False  # with the code of the block before it


class Blocks:
    """Feed it text, and take the blocks that are whole. `rest` is what may still change."""

    def __init__(self) -> None:
        self._lines: list[str] = []  # of the block that is not whole yet
        self._line = ""
        self._fence = ""  # what closes the code that is open
        self._language = ""
        self._goes_on = False

    def feed(self, text: str) -> list[Block]:
        *lines, self._line = (self._line + text).split("\n")
        return [block for line in lines for block in self._add(line)]

    def end(self) -> list[Block]:
        """What is left, whole or not."""
        found = self._add(self._line) if self._line else []
        self._line = ""
        return [*found, *self._take()]

    @property
    def rest(self) -> Block:
        text = "\n".join([*self._lines, self._line])
        return Block(text, self._language if self._fence else None, self._goes_on)

    def _add(self, line: str) -> list[Block]:
        if self._fence:
            if line.strip().startswith(self._fence) and not line.strip().strip(self._fence[0]):
                found = self._take()
                self._fence, self._goes_on = "", False
                return found
            self._lines.append(line)
            if len(self._lines) < CODE_LINES:
                return []
            found = self._take()
            self._goes_on = True
            return found
        if fence := FENCE.match(line):
            found = self._take()
            self._fence, self._language = fence[1], fence[2]
            return found
        if not line.strip():
            return self._take()
        self._lines.append(line)
        return []

    def _take(self) -> list[Block]:
        if not self._lines:
            return []
        block = Block("\n".join(self._lines), self._language if self._fence else None, self._goes_on)
        self._lines = []
        return [block]
