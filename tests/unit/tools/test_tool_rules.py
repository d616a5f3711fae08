"""What may be done unasked."""

from __future__ import annotations

import pytest
from tool_fixtures import Bench

from pyrun.errors import UserError
from pyrun.tools.rules import read_rules
from pyrun.tools.tool import ToolError


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
