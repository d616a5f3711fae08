"""What all tools have in common: their schemas, what is asked before they change something, and what is done then."""

from __future__ import annotations

from typing import Any

import pytest
from tool_fixtures import Bench, refusal

from pyrun.providers.known import Provider


def test_every_tool_of_the_promise_is_there_with_a_schema(bench: Bench) -> None:
    provider = Provider("big", "http://127.0.0.1:1/v1", "openai", "m")
    box = bench.box(providers=[provider], include={})
    files = "read_file write_file edit_file list_directory delete_file file_exists find_files search_text"
    others = "execute_command http_get http_post http_put http_delete json_parse json_validate json_query json_format"
    memory = "search_memory store_memory get_fact set_fact forget_fact ask_big"
    assert sorted(box.tools) == sorted(f"{files} {others} {memory}".split())
    for tool in box.tools.values():
        assert tool.description
        assert set(tool.required) <= set(tool.parameters)
        assert all("type" in schema for schema in tool.parameters.values())


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("read_file", {}),
        ("read_file", {"path": 5}),
        ("read_file", {"path": "a", "unknown": 1}),
        ("read_file", {"path": "a", "first_line": 0}),
        ("execute_command", {"command": "true", "timeout": 10_000}),
        ("http_get", {"url": "http://a", "headers": {"a": 1}}),
        ("no_such_tool", {}),
    ],
)
def test_arguments_that_do_not_fit_are_refused_and_written_down(
    name: str, arguments: dict[str, Any], bench: Bench
) -> None:
    refusal(bench.box(), name, **arguments)
    assert [entry["outcome"] for entry in bench.calls()] == ["refused"]


def test_reading_never_asks_and_changing_always_does(bench: Bench) -> None:
    changing = {tool.name for tool in bench.box().tools.values() if tool.changes}
    assert changing == {
        "write_file",
        "edit_file",
        "delete_file",
        "execute_command",
        "http_post",
        "http_put",
        "http_delete",
    }


def test_a_question_shows_what_it_is_about_and_cannot_be_forged(bench: Bench) -> None:
    box = bench.box()
    command = "ls\nAllow nothing else\x1b[2K\u202e"
    question = box.prepare("execute_command", {"command": command}).question
    assert question.splitlines()[1:] == ["  | ls", "  | Allow nothing else\ufffd[2K\ufffd"]
    long = box.prepare("write_file", {"path": "a", "content": "x" * 5000}).question
    assert long.endswith("(and 3,500 more characters)")


def test_what_was_agreed_to_is_what_is_done(bench: Bench) -> None:
    (bench.work / "docs").mkdir()
    (bench.work / "src").mkdir()
    box = bench.box()
    pending = box.prepare("write_file", {"path": "docs/a", "content": "x"})
    assert pending.question == "Allow write_file? It concerns:\n  | docs/a\ncontent:\n  | x"
    (bench.work / "docs").rmdir()
    (bench.work / "docs").symlink_to("src")
    with pytest.raises(Exception, match="is a link"):
        box.make(pending)
    assert list((bench.work / "src").iterdir()) == []
