"""Says where the servers of this home keep their state, as long as no flag says otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pyrun.home import Home
from pyrun.server.command import CACHE_FLAG, CACHE_VARIABLE, SHARED_FLAG
from pyrun.server.words import value_of
from pyrun.settings import path_of, read_settings, read_table, table_of, tables_of_models, take, words_of


def usual_cache(home: Home, environment: Mapping[str, str]) -> Path:
    """What stands behind `--` wins, then the variable, then the setting, as at a start."""
    where = f"{home.settings}: [server]"
    server = read_table(home.settings, "server")
    words = value_of(words_of(server, where), CACHE_FLAG)
    if named := words or environment.get(CACHE_VARIABLE):
        return Path(named)
    chosen = take(server, "cache-ssd", str, where)
    return path_of(chosen, home.settings) if chosen else home.kv_cache


def named_caches(home: Home, *flags: str) -> list[Path]:
    """All folders that llama-run.toml names with these flags, for every model or for one."""
    file = home.settings
    settings = read_settings(file)
    tables = {"[server]": table_of(settings, "server", file)}
    tables |= {f"[models.{name}]": table for name, table in tables_of_models(settings, file).items()}
    found: dict[Path, None] = {}
    for name, table in tables.items():
        for flag in flags or (CACHE_FLAG, SHARED_FLAG):
            if chosen := take(table, flag.lstrip("-"), str, f"{file}: {name}"):
                found[path_of(chosen, file)] = None
            if named := value_of(words_of(table, f"{file}: {name}"), flag):
                found[Path(named).absolute()] = None
    return list(found)
