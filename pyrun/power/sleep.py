"""Listens to logind for a coming suspend, and delays it while something is saved.

jeepney is an optional dependency (`power`), and not every machine has a message bus: without either, nothing happens.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jeepney import Message
    from jeepney.io.blocking import DBusConnection

LOGIN = "org.freedesktop.login1"
PATH = "/org/freedesktop/login1"
MANAGER = "org.freedesktop.login1.Manager"
ANSWER_SECONDS = 5.0


class Sleep:
    """The connection to logind. Belongs to one thread."""

    def __init__(self, connection: DBusConnection) -> None:
        self._connection = connection
        self._delay: int | None = None  # the file that logind waits for, while we hold it

    def inhibit(self) -> None:
        """From now on a suspend waits until `let_go`, or as long as logind allows (InhibitDelayMaxSec, 5 seconds)."""
        self.let_go()
        words = ("sleep", "llama-run", "The state of conversations is written to the disk.", "delay")
        reply = self._call("Inhibit", "ssss", words)
        if reply is not None:
            self._delay = reply[0].to_raw_fd()

    def let_go(self) -> None:
        if self._delay is not None:
            os.close(self._delay)
            self._delay = None

    def wait(self, seconds: float) -> bool | None:
        """True: the machine is about to suspend. False: it is awake again. None: nothing has happened."""
        try:
            message = self._connection.receive(timeout=seconds)
        except TimeoutError:
            return None
        return about_to_sleep(message)

    def close(self) -> None:
        self.let_go()
        self._connection.close()

    def _call(self, method: str, signature: str, words: tuple[str, ...]) -> tuple[Any, ...] | None:
        from jeepney import DBusAddress, MessageType, new_method_call

        address = DBusAddress(PATH, bus_name=LOGIN, interface=MANAGER)
        reply = self._connection.send_and_get_reply(
            new_method_call(address, method, signature, words), timeout=ANSWER_SECONDS
        )
        return tuple(reply.body) if reply.header.message_type is MessageType.method_return else None


def about_to_sleep(message: Message) -> bool | None:
    from jeepney import HeaderFields, MessageType

    fields = message.header.fields
    if message.header.message_type is not MessageType.signal or fields.get(HeaderFields.member) != "PrepareForSleep":
        return None
    return bool(message.body[0])


@contextlib.contextmanager
def listen() -> Iterator[Sleep | None]:
    """Gives None where there is no logind to listen to."""
    sleep = _connect()
    try:
        yield sleep
    finally:
        if sleep is not None:
            with contextlib.suppress(Exception):  # it may be closed already
                sleep.close()


def _connect() -> Sleep | None:
    try:
        from jeepney import MatchRule, message_bus
        from jeepney.io.blocking import open_dbus_connection
    except ImportError:
        return None
    connection = None
    try:
        connection = open_dbus_connection("SYSTEM", enable_fds=True, auth_timeout=ANSWER_SECONDS)
        rule = MatchRule(type="signal", interface=MANAGER, member="PrepareForSleep", path=PATH)
        connection.send_and_get_reply(message_bus.AddMatch(rule), timeout=ANSWER_SECONDS)
        return Sleep(connection)
    except Exception:  # there is no bus, or it refuses us, in one of many ways
        if connection is not None:
            connection.close()
        return None
