"""Busy and impossible addresses are told before anything is started."""

from __future__ import annotations

import os
import socket

import pytest

from pyrun.errors import UserError
from pyrun.server.port import check_port


def test_holder_of_a_busy_port_is_named() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(UserError, match=rf"port {port} is in use by pid {os.getpid()} \(") as caught:
            check_port("127.0.0.1", port)
        assert f"--port {port + 1}" in (caught.value.hint or "")
    check_port("127.0.0.1", port)


def test_foreign_address_is_an_error() -> None:
    with pytest.raises(UserError, match="203.0.113.1 is not an address of this machine"):
        check_port("203.0.113.1", 9090)
    with pytest.raises(UserError, match="no-such-host.invalid is not an address"):
        check_port("no-such-host.invalid", 9090)
    with pytest.raises(UserError, match="192.168..5 is not an address of this machine: it is no name"):
        check_port("192.168..5", 9090)
