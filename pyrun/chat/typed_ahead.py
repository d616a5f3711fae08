"""Keeps what is typed while an answer comes. Nobody reads it then: it must not be written into the answer, not be taken
for the answer to a question that the person has not seen yet, and not be lost to a Ctrl-C."""

from __future__ import annotations

import select
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from prompt_toolkit.input import Input
from prompt_toolkit.input.typeahead import get_typeahead, store_typeahead
from prompt_toolkit.key_binding import KeyPress
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import Output

TAKE_EVERY = 0.1  # seconds


class TypedAhead:
    def __init__(self, keyboard: Input, terminal: Output) -> None:
        self._keyboard = keyboard
        self._terminal = terminal
        self._keys: list[KeyPress] = []
        self._reading = threading.Lock()  # the keyboard

    @contextmanager
    def kept(self) -> Iterator[None]:
        """For as long as an answer takes."""
        before = termios.tcgetattr(self._keyboard.fileno())
        over = threading.Event()
        taker = threading.Thread(target=self._take, args=(over,), name="typed-ahead", daemon=True)
        # A line of the terminal's own would end at 4,095 bytes, and Ctrl-C would empty it.
        local = before[3] & ~(termios.ECHO | termios.ICANON) | termios.NOFLSH
        try:
            self._set([before[0] & ~termios.ICRNL, *before[1:3], local, *before[4:]])
            self._mark_pastes(True)
            taker.start()
            yield
        finally:
            try:
                over.set()
                if taker.ident is not None:
                    taker.join()
                self._set_aside()
            finally:
                self._set(before)
                self._mark_pastes(False)

    @contextmanager
    def out_of_the_way(self) -> Iterator[None]:
        """While the person is asked something in between."""
        with self._reading:
            self._set_aside()
            try:
                yield
            finally:
                self._mark_pastes(True)  # whoever asked has ended it

    def give_back(self, *, as_text: bool) -> bool:
        """The line that is read next begins with it; as text, Enter ends none. False if there is nothing."""
        keys, self._keys = self._keys, []
        if as_text:
            line_ends = (Keys.ControlM, Keys.ControlJ)
            keys = [KeyPress(Keys.BracketedPaste, "\n") if one.key in line_ends else one for one in keys]
        store_typeahead(self._keyboard, keys)
        return bool(keys)

    def _take(self, over: threading.Event) -> None:
        """What lies in the terminal unread is bounded, and a Ctrl-C behind it would not be heard."""
        while not over.wait(TAKE_EVERY):
            with self._reading:
                self._set_aside()

    def _set_aside(self) -> None:
        self._keys += get_typeahead(self._keyboard)
        while not self._keyboard.closed and select.select([self._keyboard.fileno()], [], [], 0)[0]:
            self._keys += self._keyboard.read_keys()

    def _set(self, attributes: list[int | list[bytes | int]]) -> None:
        termios.tcsetattr(self._keyboard.fileno(), termios.TCSANOW, attributes)

    def _mark_pastes(self, on: bool) -> None:
        """Otherwise each of their lines would be sent as a question."""
        if on:
            self._terminal.enable_bracketed_paste()
        else:
            self._terminal.disable_bracketed_paste()
        self._terminal.flush()
