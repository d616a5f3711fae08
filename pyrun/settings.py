"""`llama-run.toml`: what a person would type again. This is its one reader."""

from __future__ import annotations

import difflib
import fnmatch
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from pyrun.errors import UserError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


# A model's own table may hold these, and they count more than those of [server].
OF_MODEL = ("backend", "host", "port", "ctx", "cache-ssd", "no-cache-ssd", "warm", "noauto", "arguments")


def read_settings(path: Path) -> dict[str, Any]:
    """All tables of the file; none where there is no file."""
    try:
        content: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", "check who owns it") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid TOML: {error}", "mend the line that it names") from error
    return content


def read_table(path: Path, name: str) -> dict[str, Any]:
    """A table of the file; empty where there is none."""
    return table_of(read_settings(path), name, path)


def table_of(settings: dict[str, Any], name: str, path: Path) -> dict[str, Any]:
    table = settings.get(name, {})
    if not isinstance(table, dict):
        raise UserError(f"{path}: {name} is no table", f"write it as [{name}]")
    return table


def tables_of_models(settings: dict[str, Any], path: Path, model: str | None = None) -> dict[str, dict[str, Any]]:
    """The tables [models.NAME] by NAME, or those that are meant for one model: the one that counts most is last."""
    found = {}
    for name, table in table_of(settings, "models", path).items():
        where = f"{path}: [models.{name}]"
        if not isinstance(table, dict):
            raise UserError(f"{where} is no table", f'write it as [models."{name}"]')
        check_names(table, OF_MODEL, where)
        if model is None or fnmatch.fnmatchcase(model.lower(), name.lower()):
            found[name] = table
    return found


def take(table: dict[str, Any], name: str, kind: type, where: str, default: Any = None) -> Any:
    """A value of a table, if it is of its kind."""
    value = table.get(name, default)
    if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
        raise UserError(f"{where}: {name} must be of kind {kind.__name__}, not {value!r}", "see docs/settings.md")
    return value


def words_of(table: dict[str, Any], where: str) -> list[str]:
    """What goes to llama-server as it is."""
    words = table.get("arguments", [])
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise UserError(f"{where}: arguments must be a list of strings", 'write arguments = ["--temp", "0.2"]')
    return words


def path_of(value: str, file: Path) -> Path:
    """A path that stands in the file counts from its folder."""
    try:
        return file.parent / Path(value).expanduser()
    except RuntimeError as error:
        raise UserError(f"{file}: {value} is in nobody's home", "mend it there") from error


def check_names(given: Collection[str], known: Collection[str], where: str, what: str = "setting") -> None:
    """Raises an error for a name that nobody reads, with the one that may be meant."""
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise UserError(f"{where} has no {what} {name!r}", f"{hint}there are {', '.join(sorted(known))}")
