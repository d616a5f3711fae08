"""What the tools may do and where: from the table [tools] of llama-run.toml and from flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyrun.cache.usual import named_caches
from pyrun.errors import UserError
from pyrun.home import Home
from pyrun.memory.limit import memory_limit
from pyrun.providers.known import Provider, load_providers
from pyrun.settings import check_names, read_table, take
from pyrun.tools.kept import FOLDERS, kept_folders

KNOWN = ("root", "user", "allow", "commands", "include")


@dataclass(frozen=True)
class IncludedServer:
    """Another MCP server, and how it is started."""

    command: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Setup:
    root: Path
    memory: Path
    memory_limit: int  # bytes
    logs: Path
    user: str
    allow: tuple[str, ...]
    commands: bool
    include: Mapping[str, IncludedServer]
    providers: Sequence[Provider]
    protected: tuple[Path, ...]


def load_setup(
    home: Home,
    environment: Mapping[str, str],
    *,
    root: Path | None = None,
    memory: Path | None = None,
    user: str | None = None,
    allow: Sequence[str] = (),
    commands: bool = False,
    protect: Sequence[Path] = (),
) -> Setup:
    """Flags count more than the file; rules of both count. `protect` is what else is kept from the tools."""
    where = f"{home.settings}: [tools]"
    table = read_table(home.settings, "tools")
    check_names(table, KNOWN, where)
    named = take(table, "root", str, where)
    told = take(table, "allow", list, where, [])
    folder = memory or home.memory
    return Setup(
        root=root or (home.root / named if named else Path.cwd()),
        memory=folder,
        memory_limit=memory_limit(home.settings),
        logs=home.logs,
        user=user if user is not None else take(table, "user", str, where, ""),
        allow=(*(str(rule) for rule in told), *allow),
        commands=commands or take(table, "commands", bool, where, False),
        include=_included(take(table, "include", dict, where, {}), where),
        providers=load_providers(home.settings, environment, home.keys),
        protected=(
            home.memory,
            folder,
            home.kv_cache,
            *named_caches(home, *FOLDERS),
            *kept_folders((), environment),
            *protect,
            home.logs,
            home.settings,
            home.keys,
            home.mcp_servers,
        ),
    )


def _included(table: dict[str, Any], where: str) -> dict[str, IncludedServer]:
    servers = {}
    for name, entry in table.items():
        place = f"{where}.include.{name}"
        command = take(entry, "command", str, place) if isinstance(entry, dict) else None
        if not command:
            raise UserError(f"{place} names no command", 'write command = "..." and args = [...]')
        arguments = take(entry, "args", list, place, [])
        variables = take(entry, "env", dict, place, {})
        servers[name] = IncludedServer(
            command, tuple(map(str, arguments)), {str(k): str(v) for k, v in variables.items()}
        )
    return servers
