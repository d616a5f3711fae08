"""Changes llama-run.toml for a person, without losing what they wrote there."""

from __future__ import annotations

import os
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from pyrun.errors import UserError

Table = MutableMapping[str, Any]


def put_provider(settings: Path, name: str, values: dict[str, Any]) -> None:
    """Sets what is given and leaves the rest of the table as it is."""

    def put(content: Table) -> None:
        providers = _table(content, "providers", settings)
        if name in providers:
            _table(providers, name, settings).update(values)
        else:
            providers[name] = dict(values)

    _change(settings, put, f"[providers.{name}]")


def remove_provider(settings: Path, name: str) -> bool:
    providers = _parse(settings, _read(settings)).unwrap().get("providers")
    if not isinstance(providers, dict) or name not in providers:
        return False

    def remove(content: Table) -> None:
        del content["providers"][name]

    _change(settings, remove, f"[providers.{name}]")
    return True


def add_rule(settings: Path, rule: str) -> None:
    """What the tools may do unasked from now on."""

    def add(content: Table) -> None:
        rules = _table(content, "tools", settings).setdefault("allow", [])
        if rule not in rules:
            rules.append(rule)

    _change(settings, add, "allow of [tools]")


def _table(parent: Table, name: str, settings: Path) -> Table:
    if name not in parent:
        parent[name] = {}
    found = parent[name]
    if not isinstance(found, MutableMapping):
        raise UserError(f"{settings}: {name} is no table", f"write it as [{name}]")
    return found


def _change(settings: Path, change: Callable[[Table], None], what: str) -> None:
    """A key behind a table belongs to that table: what will be read must be what was meant, or nothing is written."""
    text = _read(settings)
    document, meant = _parse(settings, text), _parse(settings, text).unwrap()
    change(meant)
    try:
        change(document)
        changed = tomlkit.dumps(document)
        is_meant = _filled(tomlkit.parse(changed).unwrap()) == _filled(meant)
    except (TOMLKitError, ValueError, TypeError):
        is_meant = False
    if not is_meant:
        raise UserError(f"{settings} is laid out in a way that it cannot be changed in", f"change {what} by hand")
    if changed != text:
        _write(settings, changed)


def _filled(content: dict[str, Any]) -> dict[str, Any]:
    """A table of tables goes with its last one."""
    return {name: value for name, value in content.items() if value != {}}


def _read(settings: Path) -> str:
    try:
        return settings.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise _unchangeable(settings, error) from error


def _parse(settings: Path, text: str) -> tomlkit.TOMLDocument:
    try:
        return tomlkit.parse(text)
    except TOMLKitError as error:
        raise _unchangeable(settings, error) from error


def _unchangeable(settings: Path, error: Exception) -> UserError:
    return UserError(f"{settings} cannot be changed: {error}", "mend it by hand")


def _write(settings: Path, text: str) -> None:
    """The file is the old or the new one, whatever happens; its lines end as they did."""
    target = settings.resolve()
    temporary = target.with_name(f".{target.name}-{os.getpid()}")
    try:
        ends = "\r\n" if target.exists() and b"\r\n" in target.read_bytes() else "\n"
        temporary.write_text(text, encoding="utf-8", newline=ends)
        if target.exists():
            temporary.chmod(target.stat().st_mode & 0o777)
        temporary.rename(target)
    except OSError as error:
        raise UserError(f"cannot write {settings}: {error.strerror}", "check who owns it") from error
    finally:
        temporary.unlink(missing_ok=True)
