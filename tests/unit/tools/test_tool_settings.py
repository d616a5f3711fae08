"""Settings and flags: what tools may use, and what is out of their reach."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from fakes.models import gguf_bytes
from helpers import free_port
from stores import make_clone
from stores import run as run_command
from tool_fixtures import refusal

from pyrun.cli import router as router_commands
from pyrun.cli import server as server_commands
from pyrun.cli.main import cli
from pyrun.errors import UserError
from pyrun.home import Home
from pyrun.providers.known import Provider, load_providers
from pyrun.server.address import Address
from pyrun.tools.mcp_config import check_local
from pyrun.tools.setup import load_setup
from pyrun.tools.toolbox import Toolbox


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


def test_a_provider_without_its_key_is_there(tmp_path: Path) -> None:
    home = home_with(tmp_path, "[providers.local]\nbase_url = 'http://x'\nmodel = 'x'\nkey_env = 'NOT_SET'")
    assert [provider.key for provider in load_providers(home.settings, {})] == [None]


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
    port = free_port()
    flags = ("--cache-ssd", "kv", "--cache-ssd-shared", "shared", "--port", str(port), "--backend", "cpu")
    typed = ("--", "--context_spool", "spool")
    code, _, said = run_command(capsys, "--server", which, *flags, "--with-tools", *typed)
    assert code == 0, said
    entry = json.loads((clone / "memory" / f"mcp-servers-{port}.json").read_text())["mcpServers"]["llama-run"]
    words = entry["args"][entry["args"].index("tools") :]
    for folder in ("kv", "shared", "spool"):
        (root / folder).mkdir(exist_ok=True)
        (root / folder / "secret.txt").write_text("the secret")
        refused = CliRunner().invoke(cli, [*words, "call", "read_file", json.dumps({"path": f"{folder}/secret.txt"})])
        assert "llama-run's own" in str(refused.exception)
    assert CliRunner().invoke(cli, [*words, "call", "list_directory"]).exit_code == 0


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
