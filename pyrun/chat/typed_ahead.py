"""Keeps what is typed while an answer comes. Nobody reads it then: it must not be written into the answer, not be taken
for the answer to a question that the person has not seen yet, and not be lost to a Ctrl-C."""

from __future__ import annotations

import select
import termios
from collections.abc import Iterator
from contextlib import contextmanager

from prompt_toolkit.input import Input
from prompt_toolkit.input.typeahead import get_typeahead, store_typeahead
from prompt_toolkit.key_binding import KeyPress
from prompt_toolkit.output import Output


class TypedAhead:
    def __init__(self, keyboard: Input, terminal: Output) -> None:
        self._keyboard = keyboard
        self._terminal = terminal
        self._keys: list[KeyPress] = []

    @contextmanager
    def kept(self) -> Iterator[None]:
        """For as long as an answer takes."""
        before = termios.tcgetattr(self._keyboard.fileno())
        # A line of the terminal's own would end at 4,095 bytes, and Ctrl-C would empty it.
        local = before[3] & ~(termios.ECHO | termios.ICANON) | termios.NOFLSH
        self._set([before[0] & ~termios.ICRNL, *before[1:3], local, *before[4:]])
        self._mark_pastes(True)
        try:
            yield
            self._set_aside()
        except KeyboardInterrupt:
            self._set_aside()
            raise
        finally:
            self._mark_pastes(False)
            self._set(before)

    @contextmanager
    def out_of_the_way(self) -> Iterator[None]:
        """While the person is asked something in between."""
        self._set_aside()
        try:
            yield
        finally:
            self._mark_pastes(True)  # whoever asked has ended it

    def give_back(self) -> bool:
        """The line that is read next begins with it. False if there is nothing."""
        keys, self._keys = self._keys, []
        store_typeahead(self._keyboard, keys)
        return bool(keys)

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
