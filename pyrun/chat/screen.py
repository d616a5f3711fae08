"""What a person sees of a turn in a terminal: markdown as it comes, tools while they run, a dim line at the end.

Only the block that still grows is drawn again and again, ten times a second at most; all others are drawn once and
scroll away like any text.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment
from rich.spinner import Spinner
from rich.syntax import Syntax
from rich.text import Text as Styled

from pyrun import console as words
from pyrun.chat.blocks import Block, Blocks
from pyrun.chat.chain import Link
from pyrun.chat.plain import safe
from pyrun.chat.stats import Answer, Totals
from pyrun.chat.toolset import Prepared
from pyrun.providers.events import ToolCall

REFRESH_PER_SECOND = 10
MAX_CALL = 160  # characters of a call, or of a result's first line
THEME = "ansi_dark"  # the terminal's own colours


class _Tail:
    """The end of what grows: no more lines than the screen has room for, or it could not be drawn over."""

    def __init__(self, content: RenderableType) -> None:
        self.content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self.content, options.update(height=None), pad=False)
        for line in lines[-max(1, options.max_height // 2) :]:
            yield from line
            yield Segment.line()


class Screen:
    def __init__(self, console: Console, ask: Callable[[ToolCall, Prepared], str], totals: Totals) -> None:
        """`ask` puts a question about a call to the person: once, session, always or no."""
        self.console = console
        self.totals = totals
        self.thought = ""  # the reasoning of the last answer
        self._ask = ask
        self._blocks = Blocks()
        self._live: Live | None = None
        self._thinks_since = 0.0

    # What the turn tells

    def begins(self, link: Link) -> None:
        self._blocks, self.thought, self._thinks_since = Blocks(), "", 0.0
        self._show(Spinner("dots", Styled(f" {link.name}", style="dim")))

    def text(self, text: str) -> None:
        self._fold()
        for block in self._blocks.feed(safe(text)):
            self._print(_drawn(block))
        self._show(_Tail(_drawn(self._blocks.rest)))

    def reasoning(self, text: str) -> None:
        self._thinks_since = self._thinks_since or time.monotonic()
        self.thought += text
        self._show(Spinner("dots", Styled(f" thinking, {len(self.thought.split()):,} words", style="dim")))

    def takes_back(self) -> None:
        self.stop()
        self._print(Styled("(what was shown of this answer does not count)", style="dim"))

    def note(self, text: str) -> None:
        self._print(Styled(safe(text), style="yellow"))

    def calls(self, calls: Sequence[ToolCall]) -> None:
        self.stop()
        for call in calls:
            self._print(Styled(_short(f"→ {call.name} {_arguments(call)}"), style="cyan"))

    def running(self, call: ToolCall, seconds: float) -> None:
        self._show(Spinner("dots", Styled(f" {call.name} runs, {seconds:.0f} s", style="dim")))

    def result(self, call: ToolCall, result: str, failed: bool) -> None:
        first = next((line for line in result.splitlines() if line.strip()), "nothing")
        more = f" ({len(result):,} characters)" if len(result) > len(first) else ""
        mark, style = ("✗", "red") if failed else ("✓", "dim")
        self._print(Styled(_short(f"{mark} {call.name}: {first}") + more, style=style))

    def answered(self, answer: Answer) -> None:
        self.stop()
        self.totals.add(answer)
        self._print(Styled(answer.line(self.totals.prompt_per_s), style="dim"))

    def may(self, call: ToolCall, prepared: Prepared) -> str:
        self.stop()
        self._print(Styled(prepared.question, style="bold"))
        return self._ask(call, prepared)

    def stop(self) -> None:
        """Draws what is left for good. Nothing moves afterwards."""
        self._fold()
        if self._live is not None:
            self._live.update(Styled(""))
            self._live.stop()
            self._live = None
        for block in self._blocks.end():
            self._print(_drawn(block))

    # Drawing

    def _fold(self) -> None:
        """Reasoning becomes one line when it ends."""
        if self._thinks_since:
            seconds, self._thinks_since = time.monotonic() - self._thinks_since, 0.0
            n = len(self.thought.split())
            self._print(Styled(f"▸ thought for {seconds:.0f} s, {n:,} words; /thoughts shows them", style="dim"))

    def _show(self, content: RenderableType) -> None:
        if self._live is None:
            self._live = Live(content, console=self.console, refresh_per_second=REFRESH_PER_SECOND, transient=True)
            self._live.start()
        else:
            self._live.update(content)

    def _print(self, content: RenderableType) -> None:
        self.console.print(content)


def _drawn(block: Block) -> RenderableType:
    if block.language is None:
        return Markdown(block.text, code_theme=THEME, hyperlinks=False)
    return Syntax(block.text, block.language or "text", theme=THEME, word_wrap=True, background_color="default")


def _arguments(call: ToolCall) -> str:
    try:
        return json.dumps(call.parsed(), ensure_ascii=False)
    except (ValueError, RecursionError):
        return call.arguments


def _short(text: str) -> str:
    text = words.printable(" ".join(text.split()))
    return text if len(text) <= MAX_CALL else text[: MAX_CALL - 1] + "…"
