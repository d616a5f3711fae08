"""Shows on the server's own terminal what it does: a line for each busy slot, and one when a request is done."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.live import Live
from rich.text import Text

from pyrun import console
from pyrun.errors import UserError
from pyrun.server.live import Event, events, request_line, slot_line, waiting_line

AGAIN_SECONDS = 2.0


class LiveLines:
    """Draws from a thread of its own. What else is said meanwhile comes above the lines."""

    def __init__(
        self, url: str, key: str | None, follow: Callable[..., Iterator[Event]] = events, out: Any = console.err
    ) -> None:
        self._url = url
        self._key = key
        self._follow = follow
        self._out = out
        self._lock = threading.Lock()
        self._ended = False
        self._shown: Live | None = None

    def start(self) -> None:
        threading.Thread(target=self.run, daemon=True, name="live lines").start()

    def stop(self) -> None:
        """Nothing is drawn afterwards; the thread ends with the server's next word."""
        with self._lock:
            self._ended = True
            self._clear()

    def run(self) -> None:
        while not self._ended:
            with contextlib.suppress(UserError, OSError):  # the supervisor says what became of the server
                for event in self._follow(self._url, self._key, verify=False):
                    with self._lock:
                        if self._ended:
                            return
                        self._see(event)
            with self._lock:
                self._clear()
            time.sleep(AGAIN_SECONDS)

    def _see(self, event: Event) -> None:
        if event.name == "request":
            self._out.print(Text(f"done: {request_line(event.data)}"))
        elif event.name == "slots":
            busy = [slot_line(slot) for slot in event.data["slots"] if slot["phase"] != "idle"]
            lines = busy + [waiting_line(one) for one in event.data["waiting"]]
            if lines:
                self._draw(lines)
            else:
                self._clear()

    def _draw(self, lines: list[str]) -> None:
        # A line that is wider than the terminal would take two, and could not be drawn over.
        text = Text("\n".join(lines), no_wrap=True, overflow="ellipsis")
        if self._shown is None:
            self._shown = Live(text, console=self._out, auto_refresh=False, transient=True)
            self._shown.start()
        self._shown.update(text, refresh=True)

    def _clear(self) -> None:
        if self._shown is not None:
            self._shown.stop()
            self._shown = None
