"""Finds the usual server of this machine: where `llama-run --server` listens as long as no flag says otherwise."""

from __future__ import annotations

import os
from collections.abc import Sequence

from pyrun.errors import UserError
from pyrun.home import find_home
from pyrun.server.address import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    HOST_VARIABLE,
    PORT_VARIABLE,
    Address,
    choose_address,
    find_key,
    key_of,
)
from pyrun.server.ask import server_url
from pyrun.settings import read_table, words_of

# What --url says of itself where it may be left out.
OTHERWISE = f"(default: as llama-run.toml or {PORT_VARIABLE} says, or http://{DEFAULT_HOST}:{DEFAULT_PORT})"
# The variables count more than these settings.
SETTINGS = {"host": HOST_VARIABLE, "port": PORT_VARIABLE}


def usual_server(extra: Sequence[str] = ()) -> tuple[Address, str | None]:
    """Its address, and its key if it wants one. `extra` is for llama-server, as behind `--`, and counts most."""
    words = [*_words(), *extra]
    key = find_key(words, os.environ)
    return choose_address(None, None, words, os.environ), key.value if key else None


def find_server(url: str | None) -> tuple[str, str | None]:
    """Address and key of the server that is meant: the usual one, where no address is given. What llama-run.toml has
    as a key is for that one alone."""
    if url is not None:
        return server_url(url).rstrip("/"), key_of(os.environ)
    address, key = usual_server()
    return address.url, key


def _words() -> list[str]:
    """What llama-run.toml gives to every server, in llama-server's own words."""
    try:
        file = find_home().settings
    except UserError:
        return []  # without a home there are no settings, and a server may run all the same
    table, where = read_table(file, "server"), f"{file}: [server]"
    own = [(f"--{name}", str(table[name])) for name in SETTINGS if name in table and not os.environ.get(SETTINGS[name])]
    return [word for pair in own for word in pair] + words_of(table, where)
