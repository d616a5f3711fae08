"""Configurations of routers are what the routers themselves accept, and servers are shown in one table."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from pyrun.cli.fleet import fleet_group
from pyrun.errors import UserError
from pyrun.fleet.config import ROUTERS, By, Router, Server, parse_fleet, parse_server, start_lines, write_config
from pyrun.fleet.status import ServerStatus, apart, table

URLS = ("http://10.0.0.1:9090", "10.0.0.2:9090", "http://[fd00::3]:9090")
CHECKS = {"haproxy": ("-c", "-f"), "nginx": ("-t", "-c"), "sglang-router": ("-n",)}
PROGRAMS = {"haproxy": "haproxy", "nginx": "nginx", "sglang-router": "sh"}


@pytest.mark.parametrize(
    ("by", "header", "shared"),
    [
        ("conversation", None, None),
        ("conversation", "X-Llama-User", "/mnt/llama state"),
        ("user", None, "/mnt/state"),
        ("user", "X-Llama-User", None),
    ],
)
@pytest.mark.parametrize("router", ROUTERS)
def test_the_router_itself_accepts_its_configuration(
    router: Router, by: By, header: str | None, shared: str | None, tmp_path: Path
) -> None:
    # They are in /usr/sbin, which is not in everybody's path.
    program = shutil.which(PROGRAMS[router]) or shutil.which(PROGRAMS[router], path="/usr/sbin")
    if program is None:
        pytest.skip(f"{router} is not installed")
    urls = ("http://127.0.0.1:9551", "http://127.0.0.1:9552", "http://[::1]:9553")
    file = tmp_path / "router.conf"
    file.write_text(write_config(router, parse_fleet(urls, "127.0.0.1:9550", by, 4, header, shared)))
    checked = subprocess.run([program, *CHECKS[router], file], capture_output=True, text=True, cwd=tmp_path)
    assert checked.returncode == 0, checked.stderr + checked.stdout
    assert "warn" not in (checked.stderr + checked.stdout).lower()


@pytest.mark.parametrize("router", ROUTERS)
def test_every_server_is_in_it(router: Router) -> None:
    text = write_config(router, parse_fleet(URLS, "0.0.0.0:9000"))
    for address in ("10.0.0.1:9090", "10.0.0.2:9090", "[fd00::3]:9090", "9000"):
        assert address in text


@pytest.mark.parametrize("router", ["haproxy", "nginx"])
def test_a_conversations_name_comes_before_its_users(router: Router) -> None:
    text = write_config(router, parse_fleet(URLS, "127.0.0.1:9000", user_header="X-Llama-User"))
    named = text.lower().replace("_", "-")
    order = ["x-conversation-id", "llama-conversation-id", "prompt-cache-key", "x-llama-user"]
    start = named.index("map $http-") if router == "nginx" else 0
    places = [named.index(name, start) for name in order]
    assert places == sorted(places)
    assert "llama_user_id" not in text, "the header alone says whose a request is"


def test_by_user_no_conversation_counts() -> None:
    text = write_config("haproxy", parse_fleet(URLS, "127.0.0.1:9000", "user"))
    assert "prompt_cache_key" not in text
    assert "llama_user_id" in text


def test_only_with_a_shared_tier_conversations_are_moved_for_balance() -> None:
    assert "hash-balance-factor" not in write_config("haproxy", parse_fleet(URLS, "127.0.0.1:9000"))
    assert "hash-balance-factor" in write_config("haproxy", parse_fleet(URLS, "127.0.0.1:9000", shared="/mnt/x"))
    assert "--cache-threshold 0.5 " in write_config("sglang-router", parse_fleet(URLS, "127.0.0.1:9000"))
    shared = parse_fleet(URLS, "127.0.0.1:9000", shared="/mnt/x")
    assert "--cache-threshold 0.85 " in write_config("sglang-router", shared)


def test_servers_are_started_with_the_shared_tier_and_the_header() -> None:
    fleet = parse_fleet(URLS[:1], "127.0.0.1:9000", user_header="X-User", shared="/mnt/llama state")
    (line,) = start_lines(fleet)
    assert line.endswith("--host 10.0.0.1 --port 9090 -- --cache-ssd-shared '/mnt/llama state' --user-header X-User")
    (plain,) = start_lines(parse_fleet(URLS[:1], "127.0.0.1:9000"))
    assert plain.endswith("--port 9090")


@pytest.mark.parametrize(
    "text",
    ["", "10.0.0.1", "ftp://10.0.0.1:21", "http://10.0.0.1:9090/v1", "a b:80", "x;y:80", "http://h:99999", "[::1:9090"],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UserError):
        parse_server(text)


def test_what_would_break_a_configuration_is_refused() -> None:
    with pytest.raises(UserError, match="header"):
        parse_fleet(URLS, "127.0.0.1:9000", user_header="X-User\nevil")
    with pytest.raises(UserError, match="twice"):
        parse_fleet(["http://a:1", "a:1"], "127.0.0.1:9000")
    with pytest.raises(UserError, match="TLS"):
        write_config("sglang-router", parse_fleet(["https://a:1"], "127.0.0.1:9000"))
    with pytest.raises(UserError, match="alike"):
        write_config("nginx", parse_fleet(["https://a:1", "http://b:1"], "127.0.0.1:9000"))
    assert parse_server("https://gpu-1.local:443") == Server("gpu-1.local", 443, is_encrypted=True)


def test_the_configuration_is_all_that_stdout_has() -> None:
    run = CliRunner().invoke(fleet_group, ["config", "haproxy", *URLS])
    assert run.exit_code == 0
    assert run.stdout.startswith("# HAProxy")
    assert "--server" in run.stderr


def test_a_table_shows_who_works_and_who_is_away() -> None:
    well = ServerStatus(
        "http://a:1", None, "toy", "ab" * 16, 4, 2, 1, 10, tokens_reused=90, tokens_evaluated=10, conversations=3
    )
    away = ServerStatus("http://b:1", "no server answers at http://b:1")
    lines = table([well, away])
    assert len(lines) == 3
    assert "2 of 4" in lines[1]
    assert "90%" in lines[1]
    assert "no server answers" in lines[2]
    assert apart([well, away]) is None
    other = ServerStatus("http://c:1", fingerprint="cd" * 16)
    assert "2 different fingerprints" in (apart([well, other]) or "")


def test_a_server_that_is_away_ends_with_1_and_is_named() -> None:
    run = CliRunner().invoke(fleet_group, ["status", "http://127.0.0.1:1", "--json"])
    assert isinstance(run.exception, UserError)
    assert "http://127.0.0.1:1" in run.exception.message
    (told,) = json.loads(run.stdout)
    assert told["problem"]
