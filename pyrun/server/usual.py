"""Finds the usual server of this machine: where `llama-run --server` listens as long as no flag says otherwise."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pyrun.errors import UserError
from pyrun.home import Home, find_home
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
from pyrun.settings import read_settings, table_of, tables_of_models, words_of

# What --url says of itself where it may be left out.
OTHERWISE = f"(default: as llama-run.toml or {PORT_VARIABLE} says, or http://{DEFAULT_HOST}:{DEFAULT_PORT})"
# The variables count more than these settings.
SETTINGS = {"host": HOST_VARIABLE, "port": PORT_VARIABLE}


def usual_server(
    extra: Sequence[str] = (),
    model: str | None = None,
    *,
    everything: bool = False,
    host: str | None = None,
    port: int | None = None,
) -> tuple[Address, str | None]:
    """Its address, and its key if it wants one. `extra` is for llama-server, as behind `--`, and counts most.

    The others are what `llama-run --server` may be told: a model may have settings of its own, where only that one is
    served."""
    flags = _pairs({"host": host, "port": port})
    words = [*_words(model, everything, flags), *extra]
    key = find_key(words, os.environ)
    return choose_address(None, None, words, os.environ), key.value if key else None


def find_server(url: str | None) -> tuple[str, str | None]:
    """Address and key of the server that is meant: the usual one, where no address is given. What llama-run.toml has
    as a key is for that one alone."""
    if url is not None:
        return server_url(url).rstrip("/"), key_of(os.environ)
    address, key = usual_server()
    return address.url, key


def _words(model: str | None, everything: bool, flags: list[str]) -> list[str]:
    """What llama-run.toml gives to that server and what was typed, in llama-server's own words."""
    try:
        home = find_home()
    except UserError:
        return flags  # without a home there are no settings, and a server may run all the same
    file = home.settings
    settings = read_settings(file)
    tables = {"[server]": table_of(settings, "server", file)}
    if not everything and (name := _served(home, model or tables["[server]"].get("model"))):
        tables |= {f"[models.{one}]": table for one, table in tables_of_models(settings, file, name).items()}
    free = [name for name, variable in SETTINGS.items() if not os.environ.get(variable)]
    own = [word for table in tables.values() for word in _pairs({name: table.get(name) for name in free})]
    behind = [word for name, table in tables.items() for word in words_of(table, f"{file}: {name}")]
    return [*own, *behind, *flags]


def _pairs(values: Mapping[str, object]) -> list[str]:
    return [word for name, value in values.items() if value is not None for word in (f"--{name}", str(value))]


def _served(home: Home, wanted: str | None) -> str | None:
    """The name of the one model that would be served; None where there are several, or none can be found here: a
    server elsewhere may have it."""
    from pyrun.models.choose import choose_model
    from pyrun.models.find import names_in

    with contextlib.suppress(UserError):
        names = names_in(home, wanted) if wanted else [None]
        if len(names) == 1:
            return Path(choose_model(home, names[0]).name).name
    return None
