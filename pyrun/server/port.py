"""Says whether the address can be had, and who has it if not. It only looks, and touches no foreign process."""

from __future__ import annotations

import errno
import socket

import psutil

from pyrun.errors import UserError


def check_port(host: str, port: int) -> None:
    """Raises an error that names the holder when the server could not listen there."""
    if host.endswith(".sock"):
        return
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (socket.gaierror, UnicodeError) as error:  # a name such as a..b cannot even be asked for
        why = error.strerror if isinstance(error, OSError) else "it is no name"
        raise UserError(f"{host} is not an address of this machine: {why}", "use --host 127.0.0.1") from error
    with socket.socket(address[0], socket.SOCK_STREAM) as probe:
        # It does as the server does: an old connection that lingers is no reason to refuse.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address[4])
        except OSError as error:
            raise _explain(error, host, port) from error


def _explain(error: OSError, host: str, port: int) -> UserError:
    if error.errno == errno.EADDRINUSE:
        return UserError(
            f"port {port} is in use by {_holder(port)}", f"stop it, or use another port: --port {port + 1}"
        )
    if error.errno == errno.EACCES:
        return UserError(f"port {port} is not allowed for this user", "use a port above 1023, such as --port 9090")
    if error.errno == errno.EADDRNOTAVAIL:
        return UserError(f"{host} is not an address of this machine", "use --host 127.0.0.1, or 0.0.0.0 for all")
    return UserError(f"cannot listen on {host}:{port}: {error.strerror}")


def _holder(port: int) -> str:
    try:
        for connection in psutil.net_connections("tcp"):
            listens_here = (
                connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
            )
            if listens_here and connection.pid:
                return f"pid {connection.pid} ({psutil.Process(connection.pid).name()})"
    except (psutil.AccessDenied, psutil.NoSuchProcess):
        pass
    return "a process of another user (`ss -ltnp` as root tells its pid)"
