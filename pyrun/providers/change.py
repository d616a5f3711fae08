"""Changes llama-run.toml for a person, without losing what they wrote there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import Table

from pyrun.errors import UserError


def put_provider(settings: Path, name: str, values: dict[str, Any]) -> None:
    """Sets what is given and leaves the rest of the table as it is."""
    document = _read(settings)
    entry = _table(_table(document, "providers", settings), name, settings)
    for key, value in values.items():
        entry[key] = value
    _write(settings, document)


def remove_provider(settings: Path, name: str) -> bool:
    document = _read(settings)
    table = document.get("providers")
    if not isinstance(table, Table) or name not in table:
        return False
    table.remove(name)
    _write(settings, document)
    return True


def add_rule(settings: Path, rule: str) -> None:
    """What the tools may do unasked from now on."""
    document = _read(settings)
    tools = _table(document, "tools", settings)
    rules = tools.get("allow")
    if rules is None:
        rules = tomlkit.array()
        tools["allow"] = rules
    if rule not in rules:
        rules.append(rule)
        _write(settings, document)


def _table(parent: Any, name: str, settings: Path) -> Any:
    if name not in parent:
        parent[name] = tomlkit.table()
    if not hasattr(parent[name], "items"):
        raise UserError(f"{settings}: {name} is no table", f"write it as [{name}]")
    return parent[name]


def _read(settings: Path) -> tomlkit.TOMLDocument:
    try:
        return tomlkit.parse(settings.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return tomlkit.document()
    except (OSError, UnicodeDecodeError, TOMLKitError) as error:
        raise UserError(f"{settings} cannot be changed: {error}", "mend it by hand") from error


def _write(settings: Path, document: tomlkit.TOMLDocument) -> None:
    """The file is the old or the new one, whatever happens."""
    target = settings.resolve()
    temporary = target.with_name(f".{target.name}-{os.getpid()}")
    try:
        temporary.write_text(tomlkit.dumps(document), encoding="utf-8")
        if target.exists():
            temporary.chmod(target.stat().st_mode & 0o777)
        temporary.rename(target)
    except OSError as error:
        raise UserError(f"cannot write {settings}: {error.strerror}", "check who owns it") from error
    finally:
        temporary.unlink(missing_ok=True)
