"""The last lines of a screen, which are drawn over as they grow; what stands above them is drawn once.

A frame is one write, at most ten of them in a second, and only when something has changed: nothing flickers. When the
terminal was made narrower meanwhile, what is drawn over takes more lines than before, and they are counted.

Whoever waits for something can leave a line that is drawn anew on a thread of its own. It ends with whatever is drawn
next.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.segment import Segment, Segments

FRAME_SECONDS = 0.1
REDRAW_SECONDS = 0.5


class Tail:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._widths: list[int] = []  # of the lines that stand there
        self._drawn_at = 0.0
        self._lock = threading.Lock()
        self._over = threading.Event()  # What is drawn again and again ends with it.

    def show(self, content: RenderableType) -> None:
        """Draws it in place of what was shown, unless that has just been drawn: more will come."""
        with self._lock:
            self._end_repeating()
            if time.monotonic() - self._drawn_at >= FRAME_SECONDS:
                self._draw(content)

    def repeat(self, make: Callable[[], RenderableType]) -> None:
        """Draws what it gives, now and every half second until something else is drawn."""
        with self._lock:
            self._end_repeating()
            self._draw(make())
            self._over = threading.Event()
            threading.Thread(target=self._redraw, args=(make, self._over), name="tail", daemon=True).start()

    def print(self, content: RenderableType) -> None:
        """For good, above the tail, which is gone until it is shown again."""
        self.clear()
        self._console.print(content)

    def clear(self) -> None:
        with self._lock:
            self._end_repeating()
            if self._widths:
                self._write(self._erased())
            self._widths = []
            self._drawn_at = 0.0

    def _redraw(self, make: Callable[[], RenderableType], over: threading.Event) -> None:
        while not over.wait(REDRAW_SECONDS):
            with self._lock:
                if not over.is_set():
                    self._draw(make())

    def _end_repeating(self) -> None:
        if not self._over.is_set():
            self._over.set()
            self._drawn_at = 0.0  # What ends it is drawn at once.

    def _draw(self, content: RenderableType) -> None:
        size = self._console.size
        lines = self._console.render_lines(content, self._console.options.update(height=None), pad=False)
        # No more lines than could be drawn over: what has left the screen cannot be changed any more.
        lines = lines[-max(1, size.height // 2) :]
        segments = [segment for line in lines for segment in (*line, Segment.line())][:-1]
        with self._console.capture() as capture:
            self._console.print(Segments(segments), end="")
        self._write(self._erased() + capture.get())
        self._widths = [cell_len("".join(segment.text for segment in line)) for line in lines]
        self._drawn_at = time.monotonic()

    def _erased(self) -> str:
        """Goes back to where the tail began, and erases all that follows."""
        if not self._widths:
            return ""
        width = max(1, self._console.size.width)
        rows = sum(max(1, -(-cells // width)) for cells in self._widths)
        return "\r" + (f"\x1b[{rows - 1}A" if rows > 1 else "") + "\x1b[J"

    def _write(self, text: str) -> None:
        self._console.file.write(text)
        self._console.file.flush()
