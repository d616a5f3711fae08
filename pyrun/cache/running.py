"""Finds the server that has a model's state open, by the lock on it: what it was started with says where it listens."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import psutil

from pyrun.cache.folder import Held
from pyrun.errors import UserError
from pyrun.server.address import choose_address, find_key

CACHE_FLAG = "--cache-ssd"
ROUTER_FLAG = "--models-preset"


@dataclass(frozen=True)
class Running:
    url: str
    key: str | None = field(default=None, repr=False)


def servers_of(cache: Path) -> list[Running]:
    """Finds the servers that keep their state in a folder by what they were started with, where no lock can be read."""
    found = []
    for process in psutil.process_iter(["name", "cmdline"]):
        words = process.info["cmdline"] or []
        if ROUTER_FLAG in words:
            continue  # The servers that it has started tell of their models themselves.
        folder = words[words.index(CACHE_FLAG) + 1 :][:1] if CACHE_FLAG in words else []
        if folder and Path(folder[0]).resolve() == cache.resolve():
            server = server_of(Held("", process.pid, process.info["name"]))
            found += [server] if server else []
    return found


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
