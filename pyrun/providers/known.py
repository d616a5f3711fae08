"""Which providers a person has set up: the tables [providers.NAME] of llama-run.toml.

A key is never in that file. It is in an environment variable, or in the file of keys (keys.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyrun.errors import UserError
from pyrun.providers.keys import read_keys
from pyrun.server.address import is_loopback
from pyrun.settings import read_table, take

PROTOCOLS = ("openai", "anthropic")
NAME = re.compile(r"[a-z0-9_]{1,40}")
LOCAL = "local"


@dataclass(frozen=True)
class Prices:
    """Dollars for a million tokens."""

    prompt: float
    answer: float
    cached: float | None = None  # of a prompt that the server has in its cache


@dataclass(frozen=True)
class Provider:
    name: str
    base_url: str
    protocol: str  # openai or anthropic
    model: str
    key: str | None = field(default=None, repr=False)
    description: str = ""
    kind: str = ""  # one of KINDS, local, or nothing known
    context: int | None = None  # tokens
    prices: Prices | None = None
    max_cost: float | None = None  # dollars that ask_NAME may cost while a tool server or chat runs


@dataclass(frozen=True)
class Kind:
    """A service that many use: what need not be written down again."""

    base_url: str
    protocol: str = "openai"
    key_env: str | None = None
    context: int = 128_000


KINDS = {
    "openai": Kind("https://api.openai.com/v1", key_env="OPENAI_API_KEY"),
    "anthropic": Kind("https://api.anthropic.com", "anthropic", "ANTHROPIC_API_KEY", 200_000),
    "gemini": Kind(
        "https://generativelanguage.googleapis.com/v1beta/openai", key_env="GEMINI_API_KEY", context=1_000_000
    ),
    "grok": Kind("https://api.x.ai/v1", key_env="XAI_API_KEY"),
    "ollama": Kind("http://127.0.0.1:11434/v1", context=8_192),
}


def is_here(url: str) -> bool:
    """Whether only this machine answers there."""
    return is_loopback(urlsplit(url).hostname or "")


def load_providers(settings: Path, environment: Mapping[str, str], keys: Path | None = None) -> list[Provider]:
    """All of them, in the order of their names. One whose key is missing is there, without it."""
    table = read_table(settings, "providers")
    stored = read_keys(keys) if keys else {}
    return [_provider(name, entry, settings, environment, stored) for name, entry in sorted(table.items())]


def _provider(
    name: str, entry: object, settings: Path, environment: Mapping[str, str], stored: Mapping[str, str]
) -> Provider:
    where = f"{settings}: [providers.{name}]"
    if not NAME.fullmatch(name):
        raise UserError(f"{where}: a name has lower-case letters, digits and _", "choose another name")
    if not isinstance(entry, dict):
        raise UserError(f"{where} is no table", f"write it as [providers.{name}]")
    if "key" in entry or "api_key" in entry:
        raise UserError(f"{where} has a key in it", 'name the variable that has it instead: key_env = "MY_API_KEY"')
    kind = take(entry, "kind", str, where, name if name in KINDS else "")
    if kind and kind not in KINDS:
        raise UserError(f"{where}: kind is {kind!r}", f"choose one of {', '.join(KINDS)}, or give base_url instead")
    usual = KINDS.get(kind, Kind(""))
    base_url = take(entry, "base_url", str, where, usual.base_url)
    protocol = take(entry, "protocol", str, where, usual.protocol)
    model = take(entry, "model", str, where, "")
    key_env = take(entry, "key_env", str, where, usual.key_env)
    if urlsplit(base_url).scheme not in ("http", "https") or not urlsplit(base_url).hostname:
        raise UserError(f"{where}: base_url must be an address, not {base_url!r}", "such as http://127.0.0.1:9090/v1")
    if protocol not in PROTOCOLS:
        raise UserError(f"{where}: protocol is {protocol!r}", f"choose one of {', '.join(PROTOCOLS)}")
    if not model:
        raise UserError(f"{where} names no model", 'add model = "..."')
    return Provider(
        name,
        base_url,
        protocol,
        model,
        _key(environment.get(key_env, "") if key_env else "", stored.get(name, ""), where),
        take(entry, "description", str, where, ""),
        kind,
        take(entry, "context", int, where, usual.context if kind else None),
        _prices(entry, where),
        _amount(entry, "max_cost", where),
    )


def _key(told: str, stored: str, where: str) -> str | None:
    """A variable that was read from a file may have its line end at its end."""
    key = told.strip() or stored.strip()
    if not (key.isascii() and key.isprintable()):  # a package that refuses to send one would show it
        raise UserError(f"{where}: its key has characters that no header may have", "a line break, perhaps?")
    return key or None


def _prices(entry: dict[str, Any], where: str) -> Prices | None:
    prompt, answer = _amount(entry, "price_prompt", where), _amount(entry, "price_answer", where)
    if prompt is None or answer is None:
        return None
    return Prices(prompt, answer, _amount(entry, "price_cached", where))


def _amount(entry: dict[str, Any], name: str, where: str) -> float | None:
    value = entry.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise UserError(f"{where}: {name} must be an amount in dollars, not {value!r}", f"such as {name} = 2.5")
    return float(value)


def find_provider(providers: list[Provider], name: str) -> Provider:
    found = next((provider for provider in providers if provider.name == name), None)
    if found is None:
        known = ", ".join([LOCAL, *(provider.name for provider in providers)])
        hint = f"`llama-run providers add {name} --model ...` sets it up; there are {known}"
        raise UserError(f"there is no provider {name!r}", hint)
    return found
