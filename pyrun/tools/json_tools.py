"""Tools for JSON: parse, validate, query, format."""

from __future__ import annotations

import json
import re
import subprocess
from types import EllipsisType
from typing import Any

from pyrun.launch import module_command
from pyrun.tools.tool import MAX_RESULT_CHARACTERS, Call, Tool, ToolError, flag, number, text

MAX_CHARACTERS = 2_000_000
VALIDATE_SECONDS = 30
TOO_DEEP = "this JSON is nested too deeply"
EVERY = ...  # a step to all values; it is no text, so that a name "*" is not taken for it
STEP = re.compile(r"\.?([^.\[\]]+)|\[(-?\d+|\*)\]|\[\"((?:[^\"\\]|\\.)*)\"\]")


def json_tools() -> list[Tool]:
    source = text("The JSON.", maxLength=MAX_CHARACTERS)
    return [
        Tool(
            "json_parse",
            "Check that a text is JSON, and tell what it is; where it is wrong, tell the line.",
            {"text": source},
            parse,
            ("text",),
        ),
        Tool(
            "json_validate",
            "Check JSON against a JSON Schema.",
            {"text": source, "schema": {"type": "object", "description": "The schema (draft 2020-12)."}},
            validate,
            ("text", "schema"),
        ),
        Tool(
            "json_query",
            'Take values out of JSON by a path: a.b[0].c, items[*].name, ["odd.name"], or a JSON Pointer: /a/b/0.',
            {"text": source, "path": text("The path.", maxLength=2000)},
            query,
            ("text", "path"),
        ),
        Tool(
            "json_format",
            "Write JSON in another layout.",
            {
                "text": source,
                "indent": number("Spaces per level; 0 writes one line (2 if left out).", 0, 8),
                "sort_keys": flag("Whether names are sorted."),
            },
            format_json,
            ("text",),
        ),
    ]


def parse(call: Call) -> str:
    value = parsed(call.text("text"))
    if isinstance(value, dict):
        names = ", ".join(list(value)[:50])
        return f"an object with {len(value)} names: {names}" if value else "an empty object"
    if isinstance(value, list):
        kinds = sorted({_kind(item) for item in value})
        return f"a list of {len(value)}: {', '.join(kinds)}" if value else "an empty list"
    return f"{_kind(value)}: {json.dumps(value, ensure_ascii=False)}"


def validate(call: Call) -> str:
    """In a process of its own: a pattern in a schema can take for ever, and its errors all memory."""
    parsed(call.text("text"))
    try:
        done = subprocess.run(
            module_command("pyrun.tools.json_check"),
            input=json.dumps({"text": call.text("text"), "schema": call.arguments["schema"]}),
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=VALIDATE_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise ToolError(f"the schema was not done after {VALIDATE_SECONDS} seconds; simplify its patterns") from error
    if done.returncode != 0:
        raise ToolError(f"the schema cannot be used: {done.stdout.strip() or 'it is too deep or too large'}")
    return done.stdout.strip()


def query(call: Call) -> str:
    path = call.text("path")
    steps = _steps(path)
    values = [parsed(call.text("text"))]
    for step in steps:
        following = []
        for value in values:
            if step is EVERY:
                following += (
                    list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
                )
            else:
                following.append(_take(value, step, path))
        values = following
    return _written(values if EVERY in steps else values[0], 2)


def format_json(call: Call) -> str:
    value = parsed(call.text("text"))
    return _written(value, call.number("indent", 2) or None, sort_keys=call.flag("sort_keys"))


def _written(value: Any, indent: int | None, *, sort_keys: bool = False) -> str:
    """Written only as far as it is shown: deep values with wide margins would be thousands of times as long."""
    parts: list[str] = []
    room = MAX_RESULT_CHARACTERS
    try:
        for part in json.JSONEncoder(ensure_ascii=False, indent=indent, sort_keys=sort_keys).iterencode(value):
            parts.append(part)
            room -= len(part)
            if room < 0:
                end = "\n[cut: it is longer than a result may be; json_query takes a part of it]"
                return "".join(parts)[: MAX_RESULT_CHARACTERS - len(end)] + end
    except RecursionError as error:
        raise ToolError(TOO_DEEP) from error
    return "".join(parts)


def parsed(source: str) -> Any:
    try:
        return json.loads(source, parse_constant=_refuse)
    except RecursionError as error:
        raise ToolError(TOO_DEEP) from error
    except json.JSONDecodeError as error:
        raise ToolError(f"this is no JSON: line {error.lineno}, column {error.colno}: {error.msg}") from error
    except ValueError as error:
        raise ToolError(f"this is no JSON: {error}") from error


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _steps(path: str) -> list[str | int | EllipsisType]:
    if path.startswith("/"):
        return [part.replace("~1", "/").replace("~0", "~") for part in path[1:].split("/")]
    steps: list[str | int | EllipsisType] = []
    at = 1 if path.startswith("$") else 0
    while at < len(path):
        found = STEP.match(path, at)
        if not found or found.end() == at:
            raise ToolError(f"the path {path!r} cannot be read from {path[at:]!r} on")
        name, index, quoted = found.groups()
        if "*" in (name, index):
            steps.append(EVERY)
        elif quoted is not None:
            steps.append(_unquoted(quoted, path))
        else:
            steps.append(name if name is not None else int(index))
        at = found.end()
    return steps


def _unquoted(name: str, path: str) -> str:
    try:
        return str(json.loads(f'"{name}"'))
    except ValueError as error:
        raise ToolError(f'the path {path!r} cannot be read: "{name}" is no text of JSON') from error


def _take(value: Any, step: str | int, path: str) -> Any:
    if isinstance(value, dict) and str(step) in value:
        return value[str(step)]
    if isinstance(value, list) and re.fullmatch(r"-?\d{1,9}", str(step)) and -len(value) <= int(step) < len(value):
        return value[int(step)]
    has = f"an object with {', '.join(list(value)[:20])}" if isinstance(value, dict) else _kind(value)
    raise ToolError(f"{path!r}: there is no {step!r} in {has}")


def _kind(value: Any) -> str:
    if isinstance(value, list):
        return f"a list of {len(value)}"
    names = {dict: "an object", str: "a text", bool: "a truth value", int: "a number", float: "a number"}
    return names.get(type(value), "null")
