"""llama-run.toml: one table of file, arguments and environment -> the server's command or an error."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from stores import make_clone
from write_docs import PAGES, settings_page

from pyrun.cli.config import example
from pyrun.cli.main import cli, main
from pyrun.settings import read_settings


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = make_clone(tmp_path)
    monkeypatch.setenv("LLAMA_RUN_HOME", str(root))
    monkeypatch.chdir(root)
    return root


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        main(arguments)
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    ("file", "arguments", "variables", "expected", "absent"),
    [
        ("[server]\nport = 8080", "", {}, "--port 8080", "--port 9090"),
        ("[server]\nport = 8080", "--port 1", {}, "--port 1 ", "8080"),
        ("[server]\nport = 8080", "", {"LLAMA_ARG_PORT": "7"}, "--port 7 ", "8080"),
        ("[server]\nctx = 4096", "", {}, "--ctx-size 4096", "8192"),
        ("[server]\nctx = 4096\n[models.'smol*']\nctx = 2048", "", {}, "--ctx-size 2048", "4096"),
        ("[models.'SMOL*']\nctx = 2048", "--ctx 1024", {}, "--ctx-size 1024", "2048"),
        ("[models.'qwen*']\nctx = 2048", "", {}, "--jinja", "2048"),
        ("[models.'s*']\nctx = 2048\n[models.'smol*']\nctx = 1024", "", {}, "--ctx-size 1024", "2048"),
        ("[server]\ncache-ssd = 'state'", "", {}, "--cache-ssd {root}/state", "kv-cache"),
        ("[server]\ncache-ssd = 'state'", "--no-cache-ssd", {}, "--jinja", "--cache-ssd"),
        ("[server]\nno-cache-ssd = true", "", {}, "--jinja", "--cache-ssd"),
        ("[server]\nno-cache-ssd = true", "--cache-ssd x", {}, "--cache-ssd {root}/x", "kv-cache"),
        (
            "[server]\nno-cache-ssd = true\n[models.'smol*']\ncache-ssd = 'x'",
            "",
            {},
            "--cache-ssd {root}/x",
            "kv-cache",
        ),
        ("[server]\ncache-ssd = 'x'\n[models.'smol*']\nno-cache-ssd = true", "", {}, "--jinja", "--cache-ssd"),
        ("[models.'smol*']\nno-cache-ssd = true", "--cache-ssd x", {}, "--cache-ssd {root}/x", "kv-cache"),
        (
            "[server]\narguments = ['--temp', '1']\n[models.'smol*']\narguments = ['--temp', '2']",
            "-- --temp 3",
            {},
            "--temp 1 --temp 2 --temp 3",
            "--temp 4",
        ),
        ("[server]\ncontext-overflow = 'evict'", "", {"LLAMA_ARG_CONTEXT_OVERFLOW": "error"}, "--jinja", "evict"),
        ("[server]\nwarm = 'nothing'", "", {"LLAMA_ARG_CACHE_SSD_WARM": "x"}, "--jinja", "nothing"),
        ("[server]\narguments = ['--port', '8', '--temp', '1']", "--port 9", {}, "--port 9 ", "--port 8"),
        ("[server]\narguments = ['-c', '4096', '--top-k', '5']", "--ctx 8192", {}, "--ctx-size 8192", "4096"),
        ("[server]\narguments = ['--cache_ssd', '/x']", "--no-cache-ssd", {}, "--jinja", "ssd"),
        ("[models.'smol*']\narguments = ['--cache-ssd', '/x']", "--cache-ssd y", {}, "--cache-ssd {root}/y", "/x"),
        ("[models.'smol*']\nnoauto = true", "", {}, "--jinja", "--threads"),
        ("[download]\nquant = 'Q8_0'", "", {}, "--jinja", "Q8_0"),  # it is for another command, and no contradiction
    ],
)
def test_file_reaches_the_server_where_nothing_counts_more(
    clone: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    file: str,
    arguments: str,
    variables: dict[str, str],
    expected: str,
    absent: str,
) -> None:
    (clone / "llama-run.toml").write_text(file)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    code, out, err = run(capsys, "--server", "--dry-run", *arguments.split())
    assert code == 0, err
    assert expected.format(root=clone) in out
    assert absent not in out.replace(str(clone), "")


@pytest.mark.parametrize(
    ("file", "arguments", "expected"),
    [
        ("[server]\nwarm = 'coder'", "", "prompts/coder.jsonl"),
        ("[server]\nwarm = 'coder'\n[models.'smol*']\nwarm = 'mail'", "", "mail.jsonl"),
        ("[server]\nwarm = 'coder'", "--warm mail", "mail.jsonl"),
        ("", "--warm prompts/coder.jsonl", "prompts/coder.jsonl"),
    ],
)
def test_prompts_to_prepare_are_named(
    clone: Path, capsys: pytest.CaptureFixture[str], file: str, arguments: str, expected: str
) -> None:
    (clone / "prompts").mkdir()
    for name in ("prompts/coder.jsonl", "mail.jsonl"):
        (clone / name).write_text('{"messages": []}')
    names = "\n[warm-files]\ncoder = 'prompts/coder.jsonl'\nmail = 'mail.jsonl'\ngone = 'gone.jsonl'\n"
    (clone / "llama-run.toml").write_text(file + names)
    code, out, err = run(capsys, "--server", "--dry-run", *arguments.split())
    assert code == 0, err
    assert f"--cache-ssd-warm {clone / expected}" in out and out.count("--cache-ssd-warm") == 1
    code, _, err = run(capsys, "--server", "--dry-run", "--warm", "codr")
    assert code == 1 and "did you mean 'coder'?" in err
    code, _, err = run(capsys, "warm", "gone")
    assert code == 1 and f"there is no file {clone / 'gone.jsonl'}" in err


@pytest.mark.parametrize("table", ["server", "models.'smol*'"])
def test_path_of_prompts_counts_from_the_files_folder(
    clone: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    (clone / "prompts").mkdir()
    (clone / "prompts" / "coder.jsonl").write_text('{"messages": []}')
    (clone / "llama-run.toml").write_text(f"[{table}]\nwarm = 'prompts/coder.jsonl'\n")
    monkeypatch.chdir(clone / "prompts")
    code, out, err = run(capsys, "--server", "--dry-run")
    assert code == 0, err
    assert f"--cache-ssd-warm {clone / 'prompts/coder.jsonl'}" in out


def test_model_of_the_file_is_served(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (clone / "llama-run.toml").write_text("[server]\nmodel = 'missing'")
    assert "error: no model is called 'missing'" in run(capsys, "--server", "--dry-run")[2]
    assert "error: no model is called 'other'" in run(capsys, "--server", "other", "--dry-run")[2]


@pytest.mark.parametrize(
    ("file", "message", "hint"),
    [
        ("[server]\nprot = 1", "[server] has no setting 'prot'", "did you mean 'port'?"),
        ("[sever]\nport = 1", "has no table 'sever'", "did you mean 'server'?"),
        ("server = 1", "server is no table", "write it as [server]"),
        ("[models.a]\nprt = 1", "[models.a] has no setting 'prt'", "did you mean 'port'?"),
        ("[models]\na = 1", "[models.a] is no table", 'write it as [models."a"]'),
        ("[cache.ls]\njsn = true", "[cache.ls] has no setting 'jsn'", "did you mean 'json'?"),
        ("[cache]\nls = 1", "ls is no table", "write it as [cache.ls]"),
        ("[cache.rm]\nyes = true", "[cache.rm] has no setting 'yes'", "there are "),
        ("[server]\nport = 70000", "[server]: port cannot be used: 70000 is not in the range", "mend it there"),
        ("[server]\nbackend = 'abacus'", "backend cannot be used: 'abacus' is not one of", "mend it there"),
        ("[server]\nno-build = 'yes'", "no-build cannot be used: 'yes' is neither true nor false", "mend it there"),
        ("[server]\narguments = '--temp 1'", "arguments must be a list of strings", 'arguments = ["--temp", "0.2"]'),
        ("[server", "is not valid TOML", "mend the line"),
    ],
)
def test_mistake_in_the_file_is_named(
    clone: Path, capsys: pytest.CaptureFixture[str], file: str, message: str, hint: str
) -> None:
    (clone / "llama-run.toml").write_text(file)
    arguments = ("--server", "--dry-run") if "server" in file or "models" in file else ("config", "show")
    code, _, err = run(capsys, *arguments)
    assert code == 1 and message in err.partition("hint: ")[0] and hint in err.partition("hint: ")[2]
    assert str(clone / "llama-run.toml") in err
    assert run(capsys, "--help")[0] == 0, "help is given whatever is in the file"


def test_flags_of_other_commands_have_defaults_in_the_file(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (clone / "kv-cache").mkdir()
    (clone / "llama-run.toml").write_text("[cache.ls]\njson = true\n")
    code, out, _ = run(capsys, "cache", "ls")
    assert code == 0 and json.loads(out)["models"] == []


def test_show_says_where_each_value_comes_from(
    clone: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_ARG_HOST", "::1")
    (clone / "llama-run.toml").write_text(
        "[server]\nport = 8080\nhost = 'x'\narguments = ['--api-key', 'secret']\n[models.a]\nctx = 5\n"
        "[memory]\nlimit = '20G'\n[tools]\ncommands = true\n[providers.big]\nbase_url = 'http://x'\n"
    )
    code, out, err = run(capsys, "config", "show", "--json")
    assert code == 0, err
    found = {f"{one['table']}.{one['name']}": (one["value"], one["source"]) for one in json.loads(out)}
    assert found["server.port"] == (8080, "llama-run.toml")
    assert found["server.host"] == ("::1", "LLAMA_ARG_HOST")
    assert found["server.backend"] == ("auto", "default")
    assert found["server.ctx"] == (None, "not set")
    assert found["server.arguments"] == (["--api-key", "***"], "llama-run.toml")
    assert found["models.a.ctx"] == (5, "llama-run.toml")
    assert found["memory.limit"] == ("20G", "llama-run.toml")
    assert found["tools.commands"] == (True, "llama-run.toml")
    assert found["providers.big.base_url"] == ("http://x", "llama-run.toml")
    monkeypatch.setenv("LLAMA_ARG_CACHE_SSD", "/named")
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "7")
    shown = json.loads(run(capsys, "config", "show", "--json")[1])
    found = {f"{one['table']}.{one['name']}": (one["value"], one["source"]) for one in shown}
    assert found["server.no-cache-ssd"] == (False, "LLAMA_ARG_CACHE_SSD")
    assert found["models.a.ctx"] == ("7", "LLAMA_ARG_CTX_SIZE")


def test_commands_find_the_cache_where_servers_keep_it(
    clone: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LLAMA_ARG_CACHE_SSD", raising=False)

    for name in ("kv-cache", "state", "named", "behind"):
        (clone / name).mkdir()

    def places() -> tuple[str, str]:
        listed = json.loads(run(capsys, "cache", "ls", "--json")[1])["cache"]
        return listed, json.loads(run(capsys, "where", "--json")[1])["kv-cache"]

    assert places() == (str(clone / "kv-cache"),) * 2
    (clone / "llama-run.toml").write_text("[server]\ncache-ssd = 'state'\n")
    assert places() == (str(clone / "state"),) * 2
    monkeypatch.setenv("LLAMA_ARG_CACHE_SSD", str(clone / "named"))
    assert places() == (str(clone / "named"),) * 2
    (clone / "llama-run.toml").write_text(f"[server]\narguments = ['--cache-ssd', '{clone}/behind']\n")
    assert places() == (str(clone / "behind"),) * 2


def test_example_is_a_file_that_can_be_used(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = example(cli)
    (clone / "llama-run.toml").write_text(text)
    before = run(capsys, "--server", "--dry-run")[1]
    assert shlex.split(before)
    settings = [line for line in text.splitlines() if line.startswith(("# [", "[")) or " = " in line]
    uncommented = "\n".join(line.removeprefix("# ") for line in settings if not line.startswith("# With"))
    (clone / "llama-run.toml").write_text(uncommented)
    assert read_settings(clone / "llama-run.toml")["models"]["qwen3*"]["ctx"] == 65536
    names = (clone / "llama-run.toml").read_text().replace('"..."', '"x"')
    (clone / "llama-run.toml").write_text(names)
    # Every name is one that is read; the values are examples, and some of them are for nobody's machine.
    told = run(capsys, "config", "show")[2]
    assert "has no setting" not in told and "has no table" not in told and "is no table" not in told, told


def test_page_of_settings_is_generated_from_the_commands() -> None:
    assert settings_page() == (Path(__file__).parents[2] / "docs" / "settings.md").read_text(encoding="utf-8")
    assert set(PAGES) == {"cli.md", "settings.md"}
