"""What a person sees of a turn in a terminal: markdown as it comes, tools while they run, a dim line at the end.

Only the block that still grows is drawn again and again (tail.py); all others are drawn once and scroll away like any
text.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.text import Text as Styled

from pyrun import console as words
from pyrun.chat.blocks import Block, Blocks
from pyrun.chat.chain import Link
from pyrun.chat.drawing import drawn
from pyrun.chat.plain import safe
from pyrun.chat.stats import Answer, Totals
from pyrun.chat.tail import Tail
from pyrun.chat.toolset import Prepared
from pyrun.providers.events import ToolCall

MAX_CALL = 160  # characters of a call, or of a result's first line


class Screen:
    def __init__(self, console: Console, ask: Callable[[ToolCall, Prepared], str], totals: Totals) -> None:
        """`ask` puts a question about a call to the person: once, session, always or no."""
        self.console = console
        self.totals = totals
        self.thought = ""  # the reasoning of the last answer
        self._ask = ask
        self._blocks = Blocks()
        self._has_text = False  # above the block that still grows
        self._tail = Tail(console)
        self._thinks_since = 0.0
        self._evaluated = ""  # how much of the prompt, where the server tells

    # What the turn tells

    def begins(self, link: Link) -> None:
        self._blocks, self._has_text, self.thought, self._thinks_since = Blocks(), False, "", 0.0
        self._evaluated = ""
        begun = time.monotonic()
        self._tail.repeat(lambda: self._waits(link, time.monotonic() - begun))

    def progress(self, done: int, total: int) -> None:
        self._evaluated = f" {done:,} of {total:,} tokens,"

    def text(self, text: str) -> None:
        self._fold()
        self._print(self._blocks.feed(safe(text)))
        self._tail.show(drawn(self._blocks.rest, first=not self._has_text))

    def reasoning(self, text: str) -> None:
        self._thinks_since = self._thinks_since or time.monotonic()
        self.thought += text
        self._tail.show(Styled(f"thinking, {len(self.thought.split()):,} words …", style="dim"))

    def takes_back(self) -> None:
        self.stop()
        self._tail.print(Styled("(what was shown of this answer does not count)", style="dim"))

    def note(self, text: str) -> None:
        self._tail.print(Styled(safe(text), style="yellow"))

    def calls(self, calls: Sequence[ToolCall]) -> None:
        self.stop()
        for call in calls:
            self._tail.print(Styled(_short(f"→ {call.name} {_arguments(call)}"), style="cyan"))

    def running(self, call: ToolCall, seconds: float) -> None:
        self._tail.show(Styled(f"{call.name} runs, {seconds:.0f} s …", style="dim"))

    def result(self, call: ToolCall, result: str, failed: bool) -> None:
        first = next((line for line in result.splitlines() if line.strip()), "nothing")
        more = f" ({len(result):,} characters)" if len(result) > len(first) else ""
        mark, style = ("✗", "red") if failed else ("✓", "dim")
        self._tail.print(Styled(_short(f"{mark} {call.name}: {first}") + more, style=style))

    def answered(self, answer: Answer) -> None:
        self.stop()
        self.totals.add(answer)
        self._tail.print(Styled(answer.line(self.totals.prompt_per_s), style="dim"))

    def may(self, call: ToolCall, prepared: Prepared) -> str:
        self.stop()
        self._tail.print(Styled(prepared.question, style="bold"))
        return self._ask(call, prepared)

    def stop(self) -> None:
        """Draws what is left for good. Nothing moves afterwards."""
        self._fold()
        self._tail.clear()
        self._print(self._blocks.end())

    def _print(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            self._tail.print(drawn(block, first=not self._has_text))
            self._has_text = True

    def _waits(self, link: Link, seconds: float) -> Styled:
        return Styled(f"{link.name} …{self._evaluated} {words.duration(seconds)}", style="dim")

    def _fold(self) -> None:
        """Reasoning becomes one line when it ends."""
        if self._thinks_since:
            seconds, self._thinks_since = time.monotonic() - self._thinks_since, 0.0
            n = len(self.thought.split())
            self._tail.print(Styled(f"▸ thought for {seconds:.0f} s, {n:,} words; /thoughts shows them", style="dim"))


def _arguments(call: ToolCall) -> str:
    try:
        return json.dumps(call.parsed(), ensure_ascii=False)
    except (ValueError, RecursionError):
        return call.arguments


def _short(text: str) -> str:
    text = words.printable(" ".join(text.split()))
    return text if len(text) <= MAX_CALL else text[: MAX_CALL - 1] + "…"
