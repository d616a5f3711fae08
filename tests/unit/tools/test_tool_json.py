"""JSON is parsed, queried, formatted and validated."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from tool_fixtures import Bench, call, refusal

from pyrun.tools.tool import MAX_RESULT_CHARACTERS


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("json_parse", {"text": '{"a": 1, "b": []}'}, "an object with 2 names: a, b"),
        ("json_parse", {"text": "[1, [], null]"}, "a list of 3: a list of 0, a number, null"),
        ("json_parse", {"text": "true"}, "a truth value: true"),
        ("json_query", {"text": '{"a": {"b": [1, 2]}}', "path": "a.b[1]"}, "2"),
        ("json_query", {"text": '{"a": {"b": [1, 2]}}', "path": "$.a.b[-1]"}, "2"),
        ("json_query", {"text": '{"a": {"b": [1, 2]}}', "path": "/a/b/0"}, "1"),
        ("json_query", {"text": '{"x.y": {"/": 5}}', "path": '["x.y"]./'}, "5"),
        ("json_query", {"text": '{"/": 5}', "path": "/~1"}, "5"),
        ("json_query", {"text": '{"a": {"*": 5, "b": 6}}', "path": "/a/*"}, "5"),
        ("json_query", {"text": '{"a": {"*": 5, "b": 6}}', "path": 'a["*"]'}, "5"),
        ("json_query", {"text": '{"a": {"*": 5, "b": 6}}', "path": "a.*"}, "[\n  5,\n  6\n]"),
        ("json_query", {"text": '[{"n": "ä"}, {"n": "b"}]', "path": "[*].n"}, '[\n  "ä",\n  "b"\n]'),
        ("json_format", {"text": '{"b":1,"a":[]}', "indent": 0, "sort_keys": True}, '{"a": [], "b": 1}'),
        ("json_validate", {"text": "5", "schema": {"type": "integer"}}, "valid"),
        ("json_validate", {"text": '{"a": "x"}', "schema": {"required": ["b"]}}, "$: 'b' is a required property"),
    ],
)
def test_json_is_parsed_queried_formatted_and_validated(
    name: str, arguments: dict[str, Any], expected: str, bench: Bench
) -> None:
    assert call(bench.box(), name, **arguments) == expected


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("json_parse", {"text": '{"a": 1,\n}'}, "line 2"),
        ("json_query", {"text": '{"a": 1}', "path": "b"}, "no 'b' in an object with a"),
        ("json_query", {"text": "[1]", "path": "[1]"}, "no 1 in a list of 1"),
        ("json_query", {"text": "[1]", "path": "["}, "cannot be read"),
        ("json_query", {"text": "{}", "path": '["\\q"]'}, "cannot be read"),
        ("json_query", {"text": "[1, 2]", "path": "/*"}, "no '*' in a list of 2"),
        ("json_validate", {"text": "{", "schema": {}}, "no JSON"),
        ("json_validate", {"text": "{}", "schema": {"type": "nonsense"}}, "cannot be used"),
    ],
)
def test_what_is_wrong_with_json_is_told(name: str, arguments: dict[str, Any], expected: str, bench: Bench) -> None:
    assert expected in refusal(bench.box(), name, **arguments)


@pytest.mark.parametrize(("tool", "more"), [("json_format", {"indent": 8}), ("json_query", {"path": "$"})])
def test_json_is_written_no_further_than_it_is_shown(tool: str, more: dict[str, Any], bench: Bench) -> None:
    depth = 200
    source = "[" * depth + ",".join(["1"] * 10_000) + "]" * depth  # with its margins, it would be 4 and 16 MB
    tracemalloc.start()
    try:
        told = call(bench.box(), tool, text=source, **more)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert told.startswith("[\n  ") and told.endswith("json_query takes a part of it]")
    assert len(told) <= MAX_RESULT_CHARACTERS
    assert peak < 2_000_000
