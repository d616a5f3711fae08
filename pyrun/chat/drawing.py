"""How blocks of an answer look: with one empty line between two of them, and headings at the left as all text is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markdown import Heading, Markdown
from rich.segment import Segment
from rich.syntax import Syntax
from rich.text import Text

from pyrun.chat.blocks import Block, Blocks

THEME = "ansi_dark"  # the terminal's own colours
# Tags are shown as they stand: a terminal has no other use for them, and who asks about HTML wants to see them.
PARSER = MarkdownIt("commonmark", {"html": False}).enable("strikethrough").enable("table")


def drawn(block: Block, first: bool) -> RenderableType:
    """`first`: nothing of the answer stands above it."""
    content = _content(block)
    return content if first or block.goes_on else Group("", content)


def draw(text: str) -> Iterator[RenderableType]:
    """All blocks of an answer."""
    blocks = Blocks()
    for number, block in enumerate([*blocks.feed(text), *blocks.end()]):
        yield drawn(block, first=number == 0)


def _content(block: Block) -> RenderableType:
    if block.language is None:
        return _Trimmed(_Markdown(block.text))
    return Syntax(block.text, block.language or "text", theme=THEME, word_wrap=True, background_color="default")


class _Heading(Heading):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text.assemble(self.text, style="bold underline" if self.tag == "h1" else "bold")


class _Markdown(Markdown):
    elements: ClassVar = {**Markdown.elements, "heading_open": _Heading}

    def __init__(self, text: str) -> None:
        super().__init__(text, code_theme=THEME, hyperlinks=False)
        self.parsed = PARSER.parse(text)


class _Trimmed:
    """Leaves out the empty lines that are put around some kinds of blocks and not around others."""

    def __init__(self, content: RenderableType) -> None:
        self._content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._content, options, pad=False)
        while lines and _is_empty(lines[0]):
            del lines[0]
        while lines and _is_empty(lines[-1]):
            del lines[-1]
        for line in lines:
            yield from line
            yield Segment.line()


def _is_empty(line: Sequence[Segment]) -> bool:
    return not "".join(segment.text for segment in line).strip()
