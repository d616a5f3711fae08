"""Finds the server that has a model's state open, by the lock on it: what it was started with says where it listens."""

from __future__ import annotations

from dataclasses import dataclass, field

import psutil

from pyrun.cache.folder import Held
from pyrun.errors import UserError
from pyrun.server.address import choose_address, find_key


@dataclass(frozen=True)
class Running:
    url: str
    key: str | None = field(default=None, repr=False)


def server_of(held: Held) -> Running | None:
    """None where it is no server, or another user's, whose command is not ours to read."""
    if held.process != "llama-server" or held.pid is None:
        return None
    try:
        process = psutil.Process(held.pid)
        words, environment = process.cmdline()[1:], process.environ()
        key = find_key(words, environment)
        return Running(choose_address(None, None, words, environment).url, key.value if key else None)
    except (psutil.Error, UserError):
        return None
