"""Merges settings into the text of a config file: what is there and not ours stays, comments included."""

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

STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')  # a string of JSON
UNEXPECTED = "is laid out in a way that cannot be added to"
DOCUMENT = re.compile(r"^(?:---|\.\.\.)(?:\s|$)", re.MULTILINE)  # a document of YAML begins or ends there


class UnmergeableError(Exception):
    """The file is not what its agent writes, or has comments that would be lost. The message says which."""


def merge(text: str, wanted: ConfigFile) -> str:
    """Gives the file's new text, with line ends as they were. An empty text is a file that is not there yet."""
    try:
        merged = MERGERS[wanted.format](text.replace("\r\n", "\n"), wanted)
        merged.encode()
    except RecursionError as error:
        raise UnmergeableError("is nested too deeply") from error
    except UnicodeEncodeError as error:
        raise UnmergeableError("has half a character in it") from error
    return merged.replace("\n", "\r\n") if "\r\n" in text else merged


def render(wanted: ConfigFile) -> str:
    """Writes the settings alone, for a person to paste."""
    return merge("", wanted)


def _merge_json(text: str, wanted: ConfigFile) -> str:
    try:
        known = json.loads(text) if text.strip() else _empty(wanted.content)
    except ValueError as error:
        # Zed, VS Code and opencode allow comments, which Python's reader and writer would lose.
        reason = "has comments" if re.search(r"//|/\*", STRING.sub('""', text)) else f"is not JSON: {error}"
        raise UnmergeableError(reason) from error
    indent = re.search(r"^([ \t]+)\S", text, re.MULTILINE)
    merged = _merge(known, wanted.content, wanted.same)
    return json.dumps(merged, indent=indent[1] if indent else 2, ensure_ascii=False) + "\n"


def _merge_toml(text: str, wanted: ConfigFile) -> str:
    try:
        document, plain = tomlkit.parse(text), tomlkit.parse(text).unwrap()
    except TOMLKitError as error:
        raise UnmergeableError(f"is not TOML: {error}") from error
    try:
        merged = tomlkit.dumps(_merge(document, wanted.content, wanted.same))
        # A key behind a table belongs to that table: make sure that what was written is what will be read.
        if _merge(plain, wanted.content, wanted.same) == tomlkit.parse(merged).unwrap():
            return merged
    except TOMLKitError as error:
        raise UnmergeableError(UNEXPECTED) from error
    raise UnmergeableError(UNEXPECTED)


def _merge_yaml(text: str, wanted: ConfigFile) -> str:
    if DOCUMENT.search(text):
        # What stands before the first document and behind it is not kept.
        raise UnmergeableError("has a line that begins or ends a document")
    yaml = YAML()  # it keeps comments and quotes
    yaml.width = 4096
    yaml.preserve_quotes = True
    if not isinstance(wanted.content, list) and re.search(r"^- ", text, re.MULTILINE) is None:
        yaml.indent(mapping=2, sequence=4, offset=2)
    try:
        known = yaml.load(text)
        empty = known is None  # it may have comments
        reader = YAML(typ="safe", pure=True)
        plain = _empty(wanted.content) if empty else _unshared(reader.load(text))
    except YAMLError as error:
        raise UnmergeableError(f"is not YAML: {' '.join(str(error).split())}") from error
    try:
        out = io.StringIO()
        yaml.dump(_merge(_empty(wanted.content) if empty else known, wanted.content, wanted.same), out)
        merged = _ended(text) + out.getvalue() if empty else out.getvalue()
        # What is written through an alias changes its anchor, too.
        if reader.load(merged) == _merge(plain, wanted.content, wanted.same):
            return merged
    except YAMLError as error:
        raise UnmergeableError(UNEXPECTED) from error
    raise UnmergeableError(UNEXPECTED)


def _ended(text: str) -> str:
    return text if text.endswith("\n") or not text else text + "\n"


def _unshared(value: Any) -> Any:
    """Makes a copy in which what an alias stands for is a thing of its own."""
    if isinstance(value, dict):
        return {key: _unshared(inner) for key, inner in value.items()}
    return [_unshared(inner) for inner in value] if isinstance(value, list) else value


MERGERS: dict[Format, Callable[[str, ConfigFile], str]] = {
    Format.JSON: _merge_json,
    Format.TOML: _merge_toml,
    Format.YAML: _merge_yaml,
}


def _empty(content: Any) -> Any:
    return [] if isinstance(content, list) else {}


def _merge(known: Any, wanted: Any, same: str) -> Any:
    """Lays `wanted` over `known`, which is changed in place where it can be: that is how comments are kept."""
    if isinstance(wanted, dict):
        if not isinstance(known, MutableMapping):
            raise UnmergeableError(f"has {type(known).__name__} where {', '.join(wanted)} belong")
        for key, value in wanted.items():
            known[key] = _merge(known[key], value, same) if isinstance(value, dict | list) and key in known else value
        return known
    if isinstance(wanted, list) and all(isinstance(entry, dict) for entry in wanted):
        if not isinstance(known, MutableSequence):
            raise UnmergeableError(f"has {type(known).__name__} where a list belongs")
        for entry in reversed(wanted):
            place = next((n for n, old in enumerate(known) if _field(old, same) == entry[same]), None)
            if place is None:
                known.insert(0, entry)  # Continue takes the first model of its file.
            else:
                known[place] = _merge(known[place], entry, same)
        return known
    return wanted


def _field(entry: Any, name: str) -> Any:
    return entry.get(name) if isinstance(entry, MutableMapping) else None
