"""The tools one by one, their rules, the log of their calls, the settings, and the commands."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import subprocess
import sys
import threading
import tracemalloc
from dataclasses import replace
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner, Result
from fakes.dialects import Reply
from fakes.model_server import model_server
from fakes.models import gguf_bytes
from helpers import ROOT, free_port, wait_until
from memories import NASTY
from stores import make_clone
from stores import run as run_command
from tool_fixtures import Bench, call, refusal

from pyrun.cli import router as router_commands
from pyrun.cli import server as server_commands
from pyrun.cli.main import cli
from pyrun.errors import UserError
from pyrun.extras import explain_import
from pyrun.home import Home
from pyrun.providers.ask import ask
from pyrun.providers.known import Provider, load_providers
from pyrun.server.address import Address
from pyrun.tools import audit
from pyrun.tools.audit import Audit
from pyrun.tools.files import FileTools
from pyrun.tools.http import HttpTools
from pyrun.tools.mcp_config import check_local, tool_server
from pyrun.tools.rules import read_rules
from pyrun.tools.setup import IncludedServer, load_setup
from pyrun.tools.tool import MAX_RESULT_CHARACTERS, Call, ToolError
from pyrun.tools.toolbox import Toolbox


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


def test_files_are_written_read_edited_found_and_deleted(bench: Bench) -> None:
    box = bench.box()
    call(box, "write_file", path="src/deep/new.py", content="one = 1\ntwo = 2\nthree = 3\n")
    assert (
        call(box, "read_file", path="src/deep/new.py", first_line=2, max_lines=1) == "2\ttwo = 2\n[lines 2 to 2 of 3]"
    )
    assert "3 times" in refusal(box, "edit_file", path="src/deep/new.py", old=" = ", new="")
    call(box, "edit_file", path="src/deep/new.py", old="two = 2", new="two = 22")
    assert (bench.work / "src/deep/new.py").read_text() == "one = 1\ntwo = 22\nthree = 3\n"
    assert call(box, "find_files", pattern="*.py") == "src/deep/new.py"
    assert call(box, "find_files", pattern="*.py", path="src/deep") == "src/deep/new.py"
    assert call(box, "search_text", text="TWO", ignore_case=True) == "src/deep/new.py:2: two = 22"
    assert call(box, "search_text", text="TWO") == "nothing was found"
    assert call(box, "list_directory", path="src") == "deep\tfolder"
    assert call(box, "list_directory") == "inside.txt\tfile, 7 bytes\nsrc\tfolder"
    assert call(box, "file_exists", path="src/deep/new.py").startswith("yes, file")
    assert call(box, "file_exists", path="src/none/new.py") == "no"
    call(box, "delete_file", path="src/deep/new.py")
    assert call(box, "file_exists", path="src/deep/new.py") == "no"
    assert "only files" in refusal(box, "delete_file", path="src")
    assert "no such file" in refusal(box, "delete_file", path="src/none").lower()


def test_edits_of_one_file_at_the_same_time_are_all_in_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    (bench.work / "both.txt").write_text("one two")
    have_read = threading.Barrier(2)
    read = FileTools._read

    def slowly(tools: FileTools, path: str) -> str:
        content = read(tools, path)
        with contextlib.suppress(threading.BrokenBarrierError):
            have_read.wait(1)  # until the other one has read as well, if it can
        return content

    monkeypatch.setattr(FileTools, "_read", slowly)
    boxes = bench.box(), bench.box()  # a program may have several
    words = zip(boxes, ("one", "two"), strict=True)
    threads = [
        threading.Thread(target=call, args=(box, "edit_file"), kwargs={"path": "both.txt", "old": old, "new": old * 2})
        for box, old in words
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (bench.work / "both.txt").read_text() == "oneone twotwo"


def test_a_written_file_keeps_its_mode(bench: Bench) -> None:
    script = bench.work / "script.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o750)
    call(bench.box(), "edit_file", path="script.sh", old="sh\n", new="sh -e\n")
    assert script.stat().st_mode & 0o777 == 0o750
    assert [path.name for path in bench.work.iterdir() if path.name.endswith(".tmp")] == []


def test_a_command_tells_its_code_and_output(bench: Bench) -> None:
    box = bench.box()
    assert call(box, "execute_command", command="echo out; echo err >&2; exit 3") == "[exit code 3]\nout\nerr\n"
    assert call(box, "execute_command", command="kill -9 $$") == "[exit code 137]\n"
    assert call(box, "execute_command", command="exit 200") == "[exit code 200]\n"
    assert "not found" in call(box, "execute_command", command="no-such-program")


@pytest.mark.parametrize("command", ["", " \n\t", "a\0b"])
def test_a_command_that_runs_nothing_is_refused_before_anybody_is_asked(command: str, bench: Bench) -> None:
    with pytest.raises(ToolError, match="is empty|no NUL"):
        bench.box().prepare("execute_command", {"command": command})


def test_a_character_in_the_middle_of_the_output_stays_whole(bench: Bench) -> None:
    written = "x" + "я" * 40_000
    (bench.work / "long.txt").write_text(written, encoding="utf-8")
    assert call(bench.box(), "execute_command", command="cat long.txt") == f"[exit code 0]\n{written}"


@pytest.mark.skipif(sys.platform != "linux", reason="what a killed keeper leaves behind is found in /proc")
def test_a_command_that_kills_its_keeper_ends_all_the_same(bench: Bench) -> None:
    asleep = f"sleep 300.{os.getpid()}"
    command = f"exec >/dev/null 2>&1; {asleep} & kill -9 $PPID; exec {asleep}"
    assert call(bench.box(), "execute_command", command=command, timeout=600) == "[exit code -9]\n"
    assert [one.pid for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == asleep.split()] == []


def test_http_speaks_all_four_methods(bench: Bench, web: ThreadingHTTPServer) -> None:
    box = bench.box(f"address:127.0.0.1:{web.server_port}")
    url = f"http://127.0.0.1:{web.server_port}/echo?a=b&c=ü d%20e"
    for method, body in (("GET", None), ("POST", "sent ü"), ("PUT", "put"), ("DELETE", None)):
        arguments: dict[str, Any] = {"url": url, "headers": {"X-Mark": "seen"}, **({"body": body} if body else {})}
        result = call(box, f"http_{method.lower()}", **arguments)
        head, _, told = result.partition("\n\n")
        assert f"{url}\n200 OK\n" in head
        answer = json.loads(told)
        assert (answer["method"], answer["body"], answer["mark"]) == (method, body or "", "seen")
        assert answer["path"] == "/echo?a=b&c=%C3%BC%20d%20e"


def stopped_call(box: Toolbox, tool: str, /, **arguments: Any) -> str:
    """What is told of a call that its client cancels soon."""
    pending = box.prepare(tool, arguments)
    timer = threading.Timer(0.3, pending.call.stopped.set)
    timer.start()
    with pytest.raises(ToolError) as told:
        box.make(pending)
    timer.join()
    return str(told.value)


def test_a_cancelled_request_ends_while_its_server_answers(bench: Bench, web: ThreadingHTTPServer) -> None:
    box = bench.box(f"address:127.0.0.1:{web.server_port}")
    url = f"http://127.0.0.1:{web.server_port}/drip"
    assert "the call was cancelled" in stopped_call(box, "http_get", url=url, timeout=30)


def test_what_is_cancelled_before_it_is_sent_is_not_sent(web: ThreadingHTTPServer) -> None:
    stopped = threading.Event()

    def slowly(host: str, port: int) -> list[str]:
        stopped.set()
        return ["127.0.0.1"]

    tools = HttpTools(read_rules([f"address:127.0.0.1:{web.server_port}"]), slowly)
    call = Call({"url": f"http://slow.example:{web.server_port}/echo", "body": "once"}, stopped=stopped)
    with pytest.raises(ToolError, match="the call was cancelled"):
        tools.request("POST", call)
    assert web.seen == []  # type: ignore[attr-defined]


@pytest.mark.skipif(sys.platform != "linux", reason="a full queue drops those that come on Linux only")
def test_a_cancelled_request_ends_while_nobody_takes_it(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        waiting = [socket.socket() for _ in range(3)]  # they fill its queue
        try:
            for one in waiting:
                one.setblocking(False)
                one.connect_ex(listener.getsockname())
            port = listener.getsockname()[1]
            box = bench.box(f"address:127.0.0.1:{port}")
            told = stopped_call(box, "http_get", url=f"http://127.0.0.1:{port}/", timeout=30)
            assert "the call was cancelled" in told
        finally:
            for one in waiting:
                one.close()


def test_a_cancelled_question_does_not_wait_for_a_silent_model(bench: Bench) -> None:
    speaks = threading.Event()

    def script(_: dict[str, Any]) -> Reply:
        speaks.wait(30)
        return Reply(["Because."])

    with model_server(script) as server:
        box = bench.box(providers=[Provider("big", f"{server.url}/v1", "openai", "m")])
        try:
            assert "the call was cancelled" in stopped_call(box, "ask_big", question="Why?")
            # What is asked in the background takes memory, which another test would count as its own.
            wait_until(lambda: bool(server.bodies), 60, "the model was asked")
        finally:
            speaks.set()


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


def test_modules_in_the_current_folder_are_not_run(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("jsonschema", "click", "pyrun", "json"):
        (bench.work / f"{name}.py").write_text(f"from pathlib import Path; Path({name!r}).touch()")
    monkeypatch.chdir(bench.work)
    assert call(bench.box(), "json_validate", text="5", schema={"type": "integer"}) == "valid"
    entry = tool_server(bench.work)
    home = {**os.environ, "LLAMA_RUN_HOME": str(ROOT)}
    listed = subprocess.run([entry["command"], *entry["args"], "list"], env=home, capture_output=True, text=True)
    assert (listed.returncode, "json_validate" in listed.stdout) == (0, True), listed.stderr
    assert [path.name for path in bench.work.iterdir() if not path.suffix] == []


@pytest.mark.parametrize(
    ("extra", "environment", "named"),
    [
        (["--cors-origins", "*"], {}, "--cors-origins"),
        (["--cors_origins", "*"], {}, "--cors-origins"),
        (["--allowed-host", "example.org"], {}, "--allowed-host"),
        ([], {"LLAMA_ARG_CORS_ORIGINS": "*"}, "LLAMA_ARG_CORS_ORIGINS"),
        ([], {"LLAMA_ARG_ALLOWED_HOST": "example.org"}, "LLAMA_ARG_ALLOWED_HOST"),
    ],
)
def test_a_server_with_tools_cannot_be_opened_to_pages_of_other_sites(
    extra: list[str], environment: dict[str, str], named: str
) -> None:
    check_local(Address(), ["--cors-methods", "GET"], {})
    with pytest.raises(UserError, match=f"--with-tools does not go with {named}:") as refused:
        check_local(Address(), extra, environment)
    assert refused.value.hint


def test_the_variables_that_count_are_those_that_the_server_inherits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_CORS_ORIGINS", "https://example.org")
    with pytest.raises(UserError, match="LLAMA_ARG_CORS_ORIGINS"):
        check_local(Address(), [])


def test_memory_is_stored_searched_and_forgotten_and_each_user_is_alone(bench: Bench) -> None:
    box, other = bench.box(user="alice"), bench.box(user="bob")
    assert call(box, "set_fact", name="bicycle", value="Rosinante") == "it is remembered"
    assert call(box, "store_memory", question="How tall is it?", answer="1 metre") == "it is remembered"
    assert call(box, "store_memory", question="How tall is it?", answer="1 metre") == "it was known already"
    assert call(box, "get_fact", name="bicycle").startswith("Rosinante\n[")
    assert call(box, "get_fact") == "bicycle"
    assert "1 metre" in call(box, "search_memory", query="tall?")
    for name, arguments in (("search_memory", {"query": "bicycle tall"}), ("get_fact", {"name": "bicycle"})):
        assert "Rosinante" not in call(other, name, **arguments)
    assert call(other, "forget_fact", name="bicycle") == "no such fact is known"
    assert call(box, "forget_fact", name="bicycle") == "it is forgotten"
    assert call(box, "search_memory", query="Rosinante") == "nothing was found"
    assert b"osinante" not in b"".join(path.read_bytes() for path in (bench.folder / "memory").glob("memory.db*"))


def test_nasty_queries_are_searched_for_by_the_tool(bench: Bench) -> None:
    box = bench.box()
    call(box, "store_memory", question="How tall is it?", answer="1 metre")
    for text in NASTY:
        assert call(box, "search_memory", query=text)


# What may be done unasked


@pytest.mark.parametrize(
    ("rules", "tool", "subject", "allowed"),
    [
        ([], "write_file", "a.txt", False),
        (["write_file"], "write_file", "a.txt", True),
        (["write_file"], "delete_file", "a.txt", False),
        (["write_file:docs/*"], "write_file", "docs/a.txt", True),
        (["write_file:docs/*"], "write_file", "other/docs/a.txt", False),
        (["execute_command:git *"], "execute_command", "git status", True),
        (["execute_command:git *"], "execute_command", "git status; rm -r .", False),
        (["execute_command:git *"], "execute_command", "git log | sh", False),
        (["execute_command:git *"], "execute_command", "git $(rm -r .)", False),
        (["execute_command:git *"], "execute_command", "git status\nrm -r .", False),
        (["execute_command:make | tail"], "execute_command", "make | tail", True),
        (["execute_command:ls [*].txt | wc -l"], "execute_command", "ls *.txt | wc -l", True),
        (["execute_command:ls [*].txt | wc -l"], "execute_command", "ls a.txt | wc -l", False),
        (["execute_command"], "execute_command", "make | tail", True),
        (["http_post:https://api.example.org/*"], "http_post", "https://api.example.org.evil.com/", False),
    ],
)
def test_rules_decide_what_needs_no_question(rules: list[str], tool: str, subject: str, allowed: bool) -> None:
    assert read_rules(rules).allows(tool, subject) == allowed


@pytest.mark.parametrize(
    "rule", ["", ":", "write_file:", "Write File", "address:", "address:example.org", "address:1.2"]
)
def test_what_is_no_rule_is_refused(rule: str) -> None:
    with pytest.raises(UserError):
        read_rules([rule])


def test_a_rule_is_compared_with_where_a_path_leads(bench: Bench) -> None:
    (bench.work / "docs").mkdir()
    (bench.work / "src").mkdir()
    (bench.work / "docs" / "link").symlink_to("../src")
    box = bench.box("write_file:docs/*")
    expected = {
        "docs/a": False,
        "docs/new/b": False,
        "docs/../src/a": True,
        "docs/link/a": True,
        "src/../docs/a": False,
        str(bench.work / "docs/a"): False,
    }
    asks = {path: box.prepare("write_file", {"path": path, "content": ""}).needs_consent for path in expected}
    assert asks == expected


@pytest.mark.parametrize(
    "path",
    [
        "../admin",
        "./../admin",
        "..",
        "%2e%2e/admin",
        "%2E./admin",
        "a/..%2Fadmin",
        "..%5cadmin",
        "..\\admin",
        "..;a=b/admin",
        "%252e%252e/admin",
        "..%3Fx",
        "..%23x",
        "..%00/x",
        ".",
    ],
)
def test_no_address_leaves_the_path_that_a_rule_allows(path: str, bench: Bench) -> None:
    box = bench.box("http_post:https://api.example.org/v1/*")
    with pytest.raises(ToolError, match="as a part of its path; write the address that it leads to"):
        box.prepare("http_post", {"url": f"https://api.example.org/v1/{path}"})


@pytest.mark.parametrize("path", ["a", ".well-known/a..b", "...", "a%2Fb", "a?next=../b", "%2egit", "100%"])
def test_dots_that_lead_nowhere_else_are_allowed(path: str, bench: Bench) -> None:
    url = f"https://api.example.org/v1/{path}"
    pending = bench.box("http_post:https://api.example.org/v1/*").prepare("http_post", {"url": url})
    assert (pending.subject, pending.needs_consent) == (url, False)


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


def test_a_question_shows_what_it_is_about_and_cannot_be_forged(bench: Bench) -> None:
    box = bench.box()
    command = "ls\nAllow nothing else\x1b[2K\u202e"
    question = box.prepare("execute_command", {"command": command}).question
    assert question.splitlines()[1:] == ["  | ls", "  | Allow nothing else\ufffd[2K\ufffd"]
    long = box.prepare("write_file", {"path": "a", "content": "x" * 5000}).question
    assert long.endswith("(and 3,500 more characters)")


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


# The log


def test_every_call_is_written_down_for_its_owner_alone_and_without_secrets(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = bench.box()
    call(box, "read_file", path="inside.txt")
    refusal(box, "read_file", path="../x")
    call(box, "write_file", path="a", content="x" * 5000)
    refusal(box, "http_get", url="http://127.0.0.1/", headers={"Authorization": "Bearer hidden", "X-Api-Key": "hidden"})
    box.refuse(box.prepare("delete_file", {"path": "a"}), "the person did not allow it")
    assert [(entry["tool"], entry["outcome"]) for entry in bench.calls()] == [
        ("read_file", "done"),
        ("read_file", "failed"),
        ("write_file", "started"),
        ("write_file", "done"),
        ("http_get", "started"),
        ("http_get", "failed"),
        ("delete_file", "refused"),
    ]
    assert "hidden" not in bench.log.read_text()
    assert len(bench.log.read_text()) < 6000
    assert bench.log.stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr(audit, "MAX_BYTES", 100)
    call(box, "read_file", path="inside.txt")
    assert not bench.log.exists()
    assert bench.log.with_name("tools.jsonl.1").stat().st_mode & 0o777 == 0o600


def test_what_sends_something_is_written_down_before_it_is_sent(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever kills the tool server meanwhile does not undo that."""
    included = {"notes": IncludedServer("true", (), {})}
    box = bench.box(providers=[Provider("big", "http://127.0.0.1:1/v1", "openai", "m")], include=included)
    calls = {
        "http_get": {"url": "http://127.0.0.1:1/?data"},
        "ask_big": {"question": "data"},
        "list_resources": {"server": "notes"},
        "read_resource": {"server": "notes", "uri": "note://data"},
    }
    for name, arguments in calls.items():

        def killed(_: object, name: str = name, arguments: object = arguments) -> str:
            last = bench.calls()[-1]
            assert (last["tool"], last["outcome"], last["arguments"]) == (name, "started", arguments)
            return "sent"

        monkeypatch.setitem(box.tools, name, replace(box.tools[name], run=killed))
        assert call(box, name, **arguments) == "sent"


def test_many_writers_share_the_log_while_it_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight threads, each with a log of its own as if it were a program."""
    writers, lines, rounds = 8, 12, 25
    failures: list[OSError] = []

    def write(folder: Path, writer: int) -> None:
        log = Audit(folder)
        for line in range(lines):
            try:
                log.write("tool", {"writer": writer, "line": line}, "done", 0)
            except OSError as error:
                failures.append(error)

    Audit(tmp_path).write("tool", {"writer": 0, "line": 0}, "done", 0)
    whole = (tmp_path / audit.FILE).stat().st_size * writers * lines
    for number in range(rounds):
        monkeypatch.setattr(audit, "MAX_BYTES", whole * 2 // 3)  # so that it is set aside just once
        folder = tmp_path / str(number)
        threads = [threading.Thread(target=write, args=(folder, writer)) for writer in range(writers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        written = "".join(path.read_text() for path in (folder / f"{audit.FILE}.1", folder / audit.FILE))
        entries = [json.loads(line)["arguments"] for line in written.splitlines()]
        assert failures == []
        assert sorted((e["writer"], e["line"]) for e in entries) == [
            (w, n) for w in range(writers) for n in range(lines)
        ]


def test_a_line_that_a_full_disk_takes_in_part_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Audit(tmp_path)
    log.write("read_file", {}, "done", 0)
    before = log.path.read_bytes()
    real = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: real(handle, data[:10]))
    with pytest.raises(OSError, match="No space left"):
        log.write("write_file", {}, "started", 0)
    assert log.path.read_bytes() == before


def test_a_call_that_cannot_be_written_down_is_not_made(bench: Bench) -> None:
    box = bench.box()
    bench.log.parent.mkdir(exist_ok=True)
    bench.log.mkdir()
    with pytest.raises(OSError, match="directory"):
        call(box, "write_file", path="a", content="x")
    assert not (bench.work / "a").exists()


@pytest.mark.parametrize(("tool", "outcome"), [("write_file", "is written"), ("read_file", "no such file")])
def test_what_was_done_is_told_also_if_its_end_cannot_be_written_down(
    tool: str, outcome: str, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk that becomes full during the call."""
    box = bench.box()
    write = box.audit.write

    def full(name: str, arguments: Any, outcome: str, seconds: float, detail: str = "") -> None:
        if outcome != "started":
            raise OSError(errno.ENOSPC, "No space left on device")
        write(name, arguments, outcome, seconds, detail)

    monkeypatch.setattr(box.audit, "write", full)
    if tool == "write_file":
        told = call(box, tool, path="a", content="x")
        assert (bench.work / "a").read_text() == "x"
    else:
        told = refusal(box, tool, path="missing")
    assert outcome in told
    assert told.endswith("does not say how it ended: No space left on device]") and "the call was made" in told


def test_an_error_that_nobody_foresaw_is_a_result_and_is_written_down(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = bench.box()

    def fail(_: object) -> str:
        raise ZeroDivisionError("oh")

    monkeypatch.setitem(box.tools, "read_file", replace(box.tools["read_file"], run=fail))
    monkeypatch.setitem(box.tools, "write_file", replace(box.tools["write_file"], settle=fail))
    assert "ZeroDivisionError" in refusal(box, "read_file", path="inside.txt")
    assert "ZeroDivisionError" in refusal(box, "write_file", path="inside.txt", content="")
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"not": deep}
    refusal(box, "json_validate", text="5", schema=deep)
    told = [(entry["tool"], entry["outcome"]) for entry in bench.calls()]
    assert told == [("read_file", "failed"), ("write_file", "refused"), ("json_validate", "failed")]
    assert "ZeroDivisionError" in bench.calls()[0]["detail"]


# Settings and providers


def home_with(tmp_path: Path, settings: str) -> Home:
    (tmp_path / "llama-run.toml").write_text(settings)
    return Home(tmp_path)


def test_settings_come_from_the_file_and_flags_count_more(tmp_path: Path) -> None:
    home = home_with(
        tmp_path,
        """
[tools]
root = "work"
user = "alice"
allow = ["write_file:docs/*"]
commands = true
[tools.include.docs]
command = "docs-server"
args = ["--fast"]
[providers.big]
base_url = "https://api.example.org/v1"
model = "large"
key_env = "BIG_KEY"
""",
    )
    setup = load_setup(home, {"BIG_KEY": "sk-1"}, allow=["edit_file"])
    assert (setup.root, setup.user, setup.commands) == (tmp_path / "work", "alice", True)
    assert setup.allow == ("write_file:docs/*", "edit_file")
    assert setup.include["docs"].arguments == ("--fast",)
    assert setup.providers == [Provider("big", "https://api.example.org/v1", "openai", "large", "sk-1")]
    assert "sk-1" not in repr(setup)
    assert load_setup(home, {}, user="bob", root=tmp_path).user == "bob"


def test_stored_state_is_out_of_reach_wherever_it_lies(tmp_path: Path) -> None:
    home = home_with(tmp_path, "[server]\ncache-ssd = 'one'\n[models.a]\narguments = ['--cache-ssd', '/two']\n")
    protected = load_setup(home, {"LLAMA_ARG_CACHE_SSD": "/three"}).protected
    assert {home.kv_cache, tmp_path / "one", Path("/two"), Path("/three")} <= set(protected)


def test_what_left_chats_and_the_usual_memory_are_out_of_reach_as_well(tmp_path: Path) -> None:
    home = home_with(tmp_path, "[server]\narguments = ['--context-spool', '/one', '--cache-ssd', '/two']\n")
    variables = {"LLAMA_ARG_CONTEXT_SPOOL": "/three", "LLAMA_ARG_CACHE_SSD_SHARED": "/four", "LLAMA_ARG_CACHE_SSD": ""}
    setup = load_setup(home, variables, memory=tmp_path / "other", protect=[Path("/five")])
    named = {Path(name) for name in ("/one", "/two", "/three", "/four", "/five")}
    assert named | {home.memory, tmp_path / "other"} <= set(setup.protected)
    assert Path.cwd() not in setup.protected, "an empty variable names no folder"


def test_files_that_have_keys_or_say_what_is_started_are_out_of_reach(tmp_path: Path) -> None:
    home = home_with(tmp_path, "")
    home.mcp_servers.write_text('{"mcpServers": {"a": {"url": "http://x", "headers": {"Authorization": "ghp"}}}}')
    box = Toolbox(load_setup(home, {}, root=tmp_path, allow=["write_file"]))
    for path in (home.settings, home.keys, home.mcp_servers):
        assert "llama-run's own" in refusal(box, "read_file", path=path.name)
        assert "llama-run's own" in refusal(box, "write_file", path=path.name, content="{}")


@pytest.mark.parametrize("which", ["one", "--all"])
def test_folders_that_only_a_flag_of_the_server_names_are_out_of_reach_of_its_tools(
    which: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clone, root = make_clone(tmp_path), tmp_path / "work"
    monkeypatch.setenv("LLAMA_RUN_HOME", str(clone))
    (clone / "models").mkdir()
    for name in ("one", "two"):
        (clone / "models" / f"{name}.gguf").write_bytes(gguf_bytes({"llama.context_length": 8192}))
    root.mkdir()
    monkeypatch.chdir(root)
    for module in (server_commands, router_commands):
        for name in ("ensure_built", "supervise"):
            monkeypatch.setattr(module, name, lambda *_, **__: None)
    flags = ("--cache-ssd", "kv", "--cache-ssd-shared", "shared", "--port", str(free_port()), "--backend", "cpu")
    typed = ("--", "--context_spool", "spool")
    code, _, said = run_command(capsys, "--server", which, *flags, "--with-tools", *typed)
    assert code == 0, said
    entry = json.loads((clone / "memory" / "mcp-servers.json").read_text())["mcpServers"]["llama-run"]
    words = entry["args"][entry["args"].index("tools") :]
    for folder in ("kv", "shared", "spool"):
        (root / folder).mkdir(exist_ok=True)
        (root / folder / "secret.txt").write_text("the secret")
        refused = CliRunner().invoke(cli, [*words, "call", "read_file", json.dumps({"path": f"{folder}/secret.txt"})])
        assert "llama-run's own" in str(refused.exception)
    assert CliRunner().invoke(cli, [*words, "call", "list_directory"]).exit_code == 0


@pytest.mark.parametrize(
    "settings",
    [
        "[tools",
        "tools = 5",
        "[tools]\nroots = '.'",
        "[tools]\nallow = 'write_file'",
        "[tools]\ncommands = 'yes'",
        "[tools.include.x]\nargs = []",
        "[tools.include]\nx = 'command'",
        "[providers.big]\nmodel = 'x'",
        "[providers.big]\nbase_url = 'ftp://x'\nmodel = 'x'",
        "[providers.big]\nbase_url = 'http://x'",
        "[providers.big]\nbase_url = 'http://x'\nmodel = 'x'\nprotocol = 'smtp'",
        "[providers.big]\nbase_url = 'http://x'\nmodel = 'x'\nkey = 'sk-secret'",
        "[providers.'Big One']\nbase_url = 'http://x'\nmodel = 'x'",
        "[providers]\nbig = 'x'",
    ],
)
def test_settings_that_make_no_sense_are_refused_with_a_remedy(settings: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        load_setup(home_with(tmp_path, settings), {})
    assert refused.value.hint
    assert "sk-secret" not in str(refused.value)


@pytest.mark.parametrize(("protocol", "path"), [("openai", "/v1"), ("anthropic", "")])
def test_other_models_are_asked_in_their_language_and_keys_stay_secret(protocol: str, path: str, bench: Bench) -> None:
    def script(body: dict[str, Any]) -> Reply:
        return Reply(status=401, error="the key sk-1 is wrong") if body["model"] == "broken" else Reply(["Because."])

    with model_server(script, "sk-1") as server:
        url = f"{server.url}{path}"
        provider = Provider("big", url, protocol, "m", "sk-1", "It knows much.")
        box = bench.box(providers=[provider])
        assert call(box, "ask_big", question="Why?", system="Be brief.", max_tokens=50) == "Because."
        [told] = server.requests
        assert "Why?" in json.dumps(told["messages"][-1])
        assert "Be brief." in json.dumps(told)
        assert told["max_tokens"] == 50
        assert "sk-1" not in bench.log.read_text()
        with pytest.raises(UserError) as refused:
            ask(Provider("big", url, protocol, "broken", "sk-1"), "Why?")
        assert "did not answer" in refused.value.message
        assert "sk-1" not in refused.value.message
    assert "did not answer" in refusal(bench.box(providers=[provider]), "ask_big", question="Why?")


def test_a_provider_without_its_key_is_there(tmp_path: Path) -> None:
    home = home_with(tmp_path, "[providers.local]\nbase_url = 'http://x'\nmodel = 'x'\nkey_env = 'NOT_SET'")
    assert [provider.key for provider in load_providers(home.settings, {})] == [None]


# The commands


def run(bench: Bench, monkeypatch: pytest.MonkeyPatch, *words: str, flags: tuple[str, ...] = ()) -> Result:
    monkeypatch.setattr("pyrun.home.Home.logs", bench.folder / "logs")
    arguments = ["tools", "--root", str(bench.work), "--memory", str(bench.folder / "memory"), *flags, *words]
    return CliRunner().invoke(cli, arguments)


def test_tools_are_listed_and_called_from_the_command_line(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_RUN_HOME", str(ROOT))
    assert "execute_command" not in run(bench, monkeypatch, "list").stdout
    listed = json.loads(run(bench, monkeypatch, "list", "--json", flags=("--commands",)).stdout)
    assert "execute_command" in [tool["name"] for tool in listed]
    assert run(bench, monkeypatch, "call", "read_file", '{"path": "inside.txt"}').stdout == "1\tinside\n"
    write = ("call", "write_file", '{"path": "a", "content": "x"}')
    assert "--allow write_file" in str(run(bench, monkeypatch, *write).exception)
    assert not (bench.work / "a").exists()
    assert run(bench, monkeypatch, *write, flags=("--allow", "write_file")).exit_code == 0
    assert (bench.work / "a").read_text() == "x"
    for wrong in ("{", "[]", '{"path": 5}'):
        assert isinstance(run(bench, monkeypatch, "call", "read_file", wrong).exception, UserError)


def test_a_question_that_is_left_is_written_down(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_RUN_HOME", str(ROOT))
    monkeypatch.setattr("pyrun.console.is_interactive", lambda: True)
    left = run(bench, monkeypatch, "call", "write_file", '{"path": "a", "content": "x"}')  # its input has ended
    assert left.exit_code != 0 and not (bench.work / "a").exists()
    log = [json.loads(line) for line in (bench.folder / "logs" / audit.FILE).read_text().splitlines()]
    assert [entry["outcome"] for entry in log] == ["asked", "refused"]


def test_without_its_packages_it_says_how_to_install_them(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    monkeypatch.delitem(sys.modules, "pyrun.tools.toolbox")
    refused = run(bench, monkeypatch, "list").exception
    assert isinstance(refused, ImportError)
    told = explain_import(refused)
    assert told and "LLAMA_RUN_EXTRAS=tools" in (told.hint or "")
