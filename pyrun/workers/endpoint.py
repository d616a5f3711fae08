"""Says which addresses a worker may have: whoever reaches it can do with its process what he likes. It is pure."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from pyrun.errors import UserError

DEFAULT_PORT = 50052
# This machine, private networks, links between two machines, and the range that private overlay networks use.
PRIVATE = tuple(
    ipaddress.IPv4Network(network)
    for network in ("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "100.64.0.0/10")
)
# Upstream says so itself where a worker starts, and in its README.
WARNING = (
    "upstream's warning: this is an experimental feature and is not secure; never expose it to an open network, nor "
    "run it in a sensitive environment. There is no password and no encryption: whoever reaches {where} can read and "
    "change all that the worker holds, and perhaps run code as its user"
)


@dataclass(frozen=True)
class Endpoint:
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def is_private(host: str) -> bool:
    try:
        address = ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return any(address in network for network in PRIVATE)


def check_private(host: str) -> None:
    """Refuses what is reached by more than this machine or a private network; upstream speaks IPv4 alone."""
    if not is_private(host):
        raise UserError(
            f"a worker cannot be at {host}: only loopback and private IPv4 addresses are allowed, by their number, "
            "because it trusts everybody who reaches it",
            "name this machine's address in the network that the server is in, such as 192.168.1.5; for machines that "
            "are far apart, a VPN or an SSH tunnel to 127.0.0.1",
        )


def read_workers(text: str) -> tuple[Endpoint, ...]:
    """Reads `--workers HOST:PORT,...`; the port may be left out."""
    found = [_read_one(part.strip()) for part in text.split(",") if part.strip()]
    if not found:
        raise UserError("--workers names none", f"write HOST:PORT, with commas between: 192.168.1.5:{DEFAULT_PORT}")
    if twice := next((one for one in found if found.count(one) > 1), None):
        raise UserError(f"--workers names {twice} twice", "each worker serves one server, and once")
    return tuple(found)


def _read_one(text: str) -> Endpoint:
    host, colon, port = text.partition(":")
    if colon and not (port.isdecimal() and 1 <= int(port) <= 65535):
        raise UserError(f"{text!r} is no worker's address", f"write HOST:PORT, such as 192.168.1.5:{DEFAULT_PORT}")
    check_private(host)
    return Endpoint(host, int(port) if colon else DEFAULT_PORT)
