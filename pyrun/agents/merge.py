"""Merging settings into the text of a config file: what is there and not ours stays, comments included."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, MutableMapping, MutableSequence
from typing import Any

import tomlkit
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from tomlkit.exceptions import TOMLKitError

from pyrun.agents.setup import ConfigFile, Format


class UnmergeableError(Exception):
    """The file is not what its agent writes, or has comments that would be lost. Says which."""


def merge(text: str, wanted: ConfigFile) -> str:
    """The file's new text. An empty text is a file that is not there yet."""
    return MERGERS[wanted.format](text, wanted)


def render(wanted: ConfigFile) -> str:
    """The settings alone, for a person to paste."""
    return merge("", wanted)


def _merge_json(text: str, wanted: ConfigFile) -> str:
    try:
        known = json.loads(text) if text.strip() else _empty(wanted.content)
    except ValueError as error:
        # Zed, VS Code and opencode allow comments, which Python's reader and writer would lose.
        reason = "has comments" if re.search(r"^\s*//|/\*", text, re.MULTILINE) else f"is not JSON: {error}"
        raise UnmergeableError(reason) from error
    indent = re.search(r"^([ \t]+)\S", text, re.MULTILINE)
    merged = _merge(known, wanted.content, wanted.same)
    return json.dumps(merged, indent=indent[1] if indent else 2, ensure_ascii=False) + "\n"


def _merge_toml(text: str, wanted: ConfigFile) -> str:
    try:
        document = tomlkit.parse(text)
    except TOMLKitError as error:
        raise UnmergeableError(f"is not TOML: {error}") from error
    merged = tomlkit.dumps(_merge(document, wanted.content, wanted.same))
    # A key behind a table belongs to that table: make sure that what was written is what will be read.
    if _merge(tomlkit.parse(text).unwrap(), wanted.content, wanted.same) != tomlkit.parse(merged).unwrap():
        raise UnmergeableError("is laid out in a way that cannot be added to")
    return merged


def _merge_yaml(text: str, wanted: ConfigFile) -> str:
    yaml = YAML()  # keeps comments and quotes
    yaml.width = 4096
    yaml.preserve_quotes = True
    if not isinstance(wanted.content, list) and re.search(r"^- ", text, re.MULTILINE) is None:
        yaml.indent(mapping=2, sequence=4, offset=2)
    try:
        known = yaml.load(text)
        merged = _merge(_empty(wanted.content) if known is None else known, wanted.content, wanted.same)
        out = io.StringIO()
        yaml.dump(merged, out)
    except YAMLError as error:
        raise UnmergeableError(f"is not YAML: {' '.join(str(error).split())}") from error
    return out.getvalue()


MERGERS: dict[Format, Callable[[str, ConfigFile], str]] = {
    Format.JSON: _merge_json,
    Format.TOML: _merge_toml,
    Format.YAML: _merge_yaml,
}


def _empty(content: Any) -> Any:
    return [] if isinstance(content, list) else {}


def _merge(known: Any, wanted: Any, same: str) -> Any:
    """`wanted` laid over `known`, which is changed in place where it can be: that is how comments are kept."""
    if isinstance(wanted, dict):
        if not isinstance(known, MutableMapping):
            raise UnmergeableError(f"has {type(known).__name__} where {', '.join(wanted)} belong")
        for key, value in wanted.items():
            known[key] = _merge(known[key], value, same) if isinstance(value, dict | list) and key in known else value
        return known
    if isinstance(wanted, list) and all(isinstance(entry, dict) for entry in wanted):
        if not isinstance(known, MutableSequence):
            raise UnmergeableError(f"has {type(known).__name__} where a list belongs")
        for entry in wanted:
            place = next((n for n, old in enumerate(known) if _field(old, same) == entry[same]), None)
            if place is None:
                known.append(entry)
            else:
                known[place] = _merge(known[place], entry, same)
        return known
    return wanted


def _field(entry: Any, name: str) -> Any:
    return entry.get(name) if isinstance(entry, MutableMapping) else None
