"""`llama-run.toml`: what a person would type again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pyrun.errors import UserError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_table(path: Path, name: str) -> dict[str, Any]:
    """A table of the file; empty where there is none."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", "check who owns it") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid TOML: {error}", "mend the line that it names") from error
    table = content.get(name, {})
    if not isinstance(table, dict):
        raise UserError(f"{path}: {name} is no table", f"write it as [{name}]")
    return table


def take(table: dict[str, Any], name: str, kind: type, where: str, default: Any = None) -> Any:
    """A value of a table, if it is of its kind."""
    value = table.get(name, default)
    if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
        raise UserError(f"{where}: {name} must be of kind {kind.__name__}, not {value!r}", "see docs/tools.md")
    return value
