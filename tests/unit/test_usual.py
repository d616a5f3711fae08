"""Where commands look for the server of this machine: file and variables -> its address and its key."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.models import gguf_bytes
from fakes.routing_server import routing_server
from helpers import free_port
from stores import make_clone, run

from pyrun import Engine
from pyrun.errors import UserError
from pyrun.server.usual import find_server, usual_server

OF_ALL_AND_ONE = """\
[server]
arguments = ["--port", "8"]
[models.one]
port = 9
arguments = ["--api-prefix", "/b", "--api-key", "k"]
"""


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = make_clone(tmp_path)
    monkeypatch.setenv("LLAMA_RUN_HOME", str(root))
    return root


@pytest.mark.parametrize(
    ("file", "variables", "extra", "url", "key"),
    [
        ("", {}, "", "http://127.0.0.1:9090", None),
        ("[server]\nport = 8080", {}, "", "http://127.0.0.1:8080", None),
        ("[server]\nport = 8080\nhost = '0.0.0.0'", {}, "", "http://127.0.0.1:8080", None),
        ("[server]\nhost = '::1'", {}, "", "http://[::1]:9090", None),
        ("[server]\nport = 8080", {"LLAMA_ARG_PORT": "7"}, "", "http://127.0.0.1:7", None),
        ("[server]\nhost = 'x'", {"LLAMA_ARG_HOST": "y", "LLAMA_ARG_PORT": "7"}, "", "http://y:7", None),
        ("[server]\narguments = ['--port', '6']", {"LLAMA_ARG_PORT": "7"}, "", "http://127.0.0.1:6", None),
        ("[server]\narguments = ['--port', '6']", {"LLAMA_ARG_PORT": "7"}, "--port 5", "http://127.0.0.1:5", None),
        ("[server]\narguments = ['--api-prefix', '/a']", {}, "", "http://127.0.0.1:9090/a", None),
        ("[server]\narguments = ['--api-key', 'k']", {}, "", "http://127.0.0.1:9090", "k"),
        ("[server]\narguments = ['--api-key', 'k']", {"LLAMA_API_KEY": "v"}, "", "http://127.0.0.1:9090", "k"),
        ("", {"LLAMA_API_KEY": "v,w"}, "", "http://127.0.0.1:9090", "v"),
        ("[models.a]\nport = 8080", {}, "", "http://127.0.0.1:9090", None),
        ("[models.one]\nport = 8080", {}, "", "http://127.0.0.1:8080", None),  # the only one that is there
        ("[models.'o*']\nport = 8080", {"LLAMA_ARG_PORT": "7"}, "", "http://127.0.0.1:7", None),
        ("[server]\nmodel = 'on'\nport = 8\n[models.one]\nport = 9", {}, "", "http://127.0.0.1:9", None),
        ("[server]\nmodel = 'one,one'\nport = 8\n[models.one]\nport = 9", {}, "", "http://127.0.0.1:8", None),
        (
            OF_ALL_AND_ONE,
            {},
            "",
            "http://127.0.0.1:8/b",
            "k",
        ),
    ],
)
def test_the_server_is_looked_for_where_it_would_be_started(
    clone: Path,
    monkeypatch: pytest.MonkeyPatch,
    file: str,
    variables: dict[str, str],
    extra: str,
    url: str,
    key: str | None,
) -> None:
    (clone / "models").mkdir()
    (clone / "models" / "one.gguf").write_bytes(gguf_bytes())
    (clone / "llama-run.toml").write_text(file)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    address, found = usual_server(extra.split())
    assert (address.url, found) == (url, key)


def test_what_is_typed_counts_more_than_the_arguments_of_the_settings(clone: Path) -> None:
    (clone / "llama-run.toml").write_text("[server]\nport = 7\narguments = ['--port', '8', '--host', '::1']\n")
    assert usual_server(port=9)[0].url == "http://[::1]:9"


def test_a_key_of_the_settings_is_for_no_other_server(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (clone / "llama-run.toml").write_text("[server]\narguments = ['--api-key', 'k']")
    assert find_server(None) == ("http://127.0.0.1:9090", "k")
    assert find_server("example.org:80/") == ("http://example.org:80", None)
    monkeypatch.setenv("LLAMA_API_KEY", "v")
    assert find_server("example.org:80") == ("http://example.org:80", "v")


def test_a_mistake_in_the_settings_is_named_and_no_home_is_none(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (clone / "llama-run.toml").write_text("[server]\nport = 'far'")
    with pytest.raises(UserError, match="'far' is not a port"):
        usual_server()
    monkeypatch.setenv("LLAMA_RUN_HOME", str(clone / "nowhere"))
    assert usual_server()[0].port == 9090


@pytest.mark.parametrize(
    "words", ["warm --system x --json", "cache why --json", "top --once", "experts --json", "connect codex"]
)
def test_commands_find_the_server_of_the_settings(clone: Path, capsys: pytest.CaptureFixture[str], words: str) -> None:
    with routing_server(["toy"], loaded=["toy"]) as server:
        (clone / "llama-run.toml").write_text(f"[server]\nport = {server.server_port}\n")
        code, out, err = run(capsys, *words.split())
        assert code == 0 and out, err
    assert server.asked


def test_handing_over_finds_the_server_of_the_settings(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    (clone / "llama-run.toml").write_text(f"[server]\nport = {port}\n")
    code, _, err = run(capsys, "cache", "push", "0123456789abcdef", "--to", str(clone))
    assert code == 1 and f"http://127.0.0.1:{port}" in err


def test_an_engine_finds_the_server_of_the_settings(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with routing_server(["toy"]) as server:
        (clone / "llama-run.toml").write_text(f"[server]\nport = {server.server_port}\narguments = ['--api-key', 'k']")
        with Engine() as engine:
            assert (engine.url, engine.key, engine.model) == (server.url, "k", "toy")
        (clone / "llama-run.toml").write_text("[server]\nport = 1\n")
        with Engine(port=server.server_port) as engine:
            assert engine.url == server.url
