"""Which providers a person has set up: the tables [providers.NAME] of llama-run.toml.

A key is never in the file: it names the environment variable that has it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from pyrun.errors import UserError
from pyrun.settings import read_table, take

PROTOCOLS = ("openai", "anthropic")
NAME = re.compile(r"[a-z0-9_]{1,40}")


@dataclass(frozen=True)
class Provider:
    name: str
    base_url: str
    protocol: str  # openai or anthropic
    model: str
    key: str | None = field(default=None, repr=False)
    description: str = ""


def load_providers(settings: Path, environment: Mapping[str, str]) -> list[Provider]:
    """All of them, in the order of their names. One whose key is missing is there, without it."""
    table = read_table(settings, "providers")
    return [_provider(name, entry, settings, environment) for name, entry in sorted(table.items())]


def _provider(name: str, entry: object, settings: Path, environment: Mapping[str, str]) -> Provider:
    where = f"{settings}: [providers.{name}]"
    if not NAME.fullmatch(name):
        raise UserError(f"{where}: a name has lower-case letters, digits and _", "choose another name")
    if not isinstance(entry, dict):
        raise UserError(f"{where} is no table", f"write it as [providers.{name}]")
    if "key" in entry or "api_key" in entry:
        raise UserError(f"{where} has a key in it", 'name the variable that has it instead: key_env = "MY_API_KEY"')
    base_url = take(entry, "base_url", str, where, "")
    protocol = take(entry, "protocol", str, where, "openai")
    model = take(entry, "model", str, where, "")
    key_env = take(entry, "key_env", str, where)
    if urlsplit(base_url).scheme not in ("http", "https") or not urlsplit(base_url).hostname:
        raise UserError(f"{where}: base_url must be an address, not {base_url!r}", "such as http://127.0.0.1:9090/v1")
    if protocol not in PROTOCOLS:
        raise UserError(f"{where}: protocol is {protocol!r}", f"choose one of {', '.join(PROTOCOLS)}")
    if not model:
        raise UserError(f"{where} names no model", 'add model = "..."')
    key = environment.get(key_env) if key_env else None
    return Provider(name, base_url, protocol, model, key, take(entry, "description", str, where, ""))
