"""What a tool may do unasked: a pure decision over rules.

A rule is TOOL or TOOL:PATTERN; the pattern is compared with the call's subject (a path, a command line, an address),
with * for any text. `address:IP[/BITS][:PORT]` is a rule of another kind: it opens a private address to HTTP.
"""

from __future__ import annotations

import glob
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from pyrun.errors import UserError

SHELL_SIGNS = re.compile(r"[;&|`$()<>\\\n\r]")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class OpenAddress:
    network: Network
    port: int | None = None  # any


@dataclass(frozen=True)
class Rules:
    tools: tuple[tuple[str, str], ...] = ()  # name and pattern
    addresses: tuple[OpenAddress, ...] = ()

    def allows(self, tool: str, subject: str) -> bool:
        return any(name == tool and _matches(tool, subject, pattern) for name, pattern in self.tools)

    def opens(self, address: Address, port: int) -> bool:
        return any(address in o.network and o.port in (None, port) for o in self.addresses)


def _matches(tool: str, subject: str, pattern: str) -> bool:
    just_that = (subject, glob.escape(subject))  # as a person writes it, and as a consent is kept
    if tool == "execute_command" and pattern not in ("*", *just_that) and SHELL_SIGNS.search(subject):
        return False  # `git *` is not meant to allow `git status; rm -r .`
    return fnmatchcase(subject, pattern)


def read_rules(lines: Sequence[str]) -> Rules:
    tools = []
    addresses = []
    for line in lines:
        name, colon, pattern = line.partition(":")
        if name == "address":
            addresses.append(_open_address(line, pattern))
        elif re.fullmatch(r"[A-Za-z_0-9-]+", name) and (pattern or not colon):
            tools.append((name, pattern or "*"))
        else:
            raise UserError(f"{line!r} is no rule", "write TOOL, TOOL:PATTERN or address:IP[/BITS][:PORT]")
    return Rules(tuple(tools), tuple(addresses))


def _open_address(line: str, text: str) -> OpenAddress:
    found = re.fullmatch(r"\[([0-9a-fA-F:.]+)\](/\d+)?(?::(\d+))?|([0-9.]+)(/\d+)?(?::(\d+))?", text)
    try:
        if not found:
            raise ValueError(text)
        network = ipaddress.ip_network((found[1] or found[4]) + (found[2] or found[5] or ""), strict=False)
    except ValueError as error:
        raise UserError(
            f"{line!r} names no address", "write address:127.0.0.1:9090, address:192.168.1.0/24 or address:[::1]:9090"
        ) from error
    port = found[3] or found[6]
    return OpenAddress(network, int(port) if port else None)
