"""One table of arguments -> effect -> error for the command line, and the generated page that documents it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import click
import pytest
from fakes.models import gguf_bytes
from helpers import ROOT
from write_docs import cli_page

from pyrun.cli.main import Root, cli, main
from pyrun.console import duration, size
from pyrun.extras import EXTRAS, explain_import
from pyrun.server.address import choose_address, find_key
from pyrun.server.ask import ask

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PIN = (ROOT / "llama.cpp" / "upstream.toml").read_text()


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "llama.cpp").mkdir()
    (tmp_path / "llama.cpp" / "upstream.toml").write_text(PIN)
    (tmp_path / "models").mkdir()
    monkeypatch.setenv("LLAMA_RUN_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        main(arguments)
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--server --dry-run", "--model {root}/models/built-in/SmolLM2-135M-Instruct.Q4_1.gguf"),
        ("--server --dry-run", "--host 127.0.0.1 --port 9090 --jinja"),
        ("--server --dry-run", "--path {web}"),  # upstream's page is not built here
        ("--server --dry-run", "/smollm2.jinja"),  # the default model's template knows tools
        ("--server --dry-run --port 1234 --ctx 4096", "--port 1234 --jinja"),
        ("--server --dry-run", "--cache-ssd {root}/kv-cache"),
        ("--server --dry-run --cache-ssd state", "--cache-ssd {root}/state"),
        ("--server --dry-run --cache-ssd /fast/disk", "--cache-ssd /fast/disk"),
        ("--server --dry-run -- --cache-ssd-max-size 4G", "--cache-ssd {root}/kv-cache"),  # ours is sized, not replaced
        ("--server --dry-run -- --cache-ram 100", "--cache-ssd {root}/kv-cache"),
        ("--server --dry-run -- --temp 0.5 -c 7", " --temp 0.5 -c 7\n"),
        ("--server --dry-run --port 1 -- --port 2", "--host 127.0.0.1 --jinja"),  # said once, and by the user
        ("--server --dry-run", "/memory/spool --metadata-users off"),  # one person's agents share
        ("--server --dry-run -- --alias gpt-9", "{root}/pyrun/web --threads"),
        ("--server --dry-run -- --api-key k", "--alias SmolLM2-135M-Instruct.Q4_1 --threads"),
        ("--server --dry-run --host 0.0.0.0", "--alias SmolLM2-135M-Instruct.Q4_1 --threads"),
        ("--server --dry-run -- --metadata-users on", "--alias SmolLM2-135M-Instruct.Q4_1 --threads"),
        ("--server -- --dry-run", None),  # belongs to llama-server: not ours
        ("--server --print-profile", "known from: file name"),  # it is not fetched yet
        ("doctor --no-disk", "backend: "),
        ("--list-backends", "auto is "),
        ("doctor --no-disk --json", '"recommended_backend": {{'),
        ("--version", "llama-run, version "),
        ("--help", "--server [MODEL]"),
        ("", "--server [MODEL]"),
    ],
)
def test_arguments_reach_the_server(
    clone: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: str,
    expected: str | None,
) -> None:
    started: list[tuple[str, ...]] = []
    monkeypatch.setattr("pyrun.cli.server.check_port", lambda host, port: None)
    monkeypatch.setattr("pyrun.cli.server.ensure_built", lambda home, options, snapshot: None)
    monkeypatch.setattr("pyrun.cli.server.ensure_default_model", lambda home: None)
    monkeypatch.setattr("pyrun.cli.server.supervise", lambda home, settings, *rest: started.append(settings.extra))
    code, out, _ = run(capsys, *arguments.split())
    assert code == 0
    if expected is None:
        assert out == "" and started == [("--dry-run",)]
    else:
        assert expected.format(root=clone, web=clone / "pyrun" / "web") in out and not started


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        ("--serve", 2, "No such option '--serve'. Did you mean '--server'?"),
        ("serve", 2, "No such command 'serve'"),
        ("cahce ls", 2, "did you mean `llama-run cache ls`?"),
        ("serve", 2, "hint: that is `llama-run --server`"),
        ("run qwen", 2, "hint: that is `llama-run --server qwen`"),
        ("pull a/b", 2, "hint: that is `llama-run --download a/b`"),
        ("a.gguf", 2, "hint: a model is served by `llama-run --server a.gguf`"),
        ("--server --temp 0.2", 2, "go behind `--`: llama-run --server -- --temp 0.2\n"),
        ("--server --temp 0.2", 2, "No such option '--temp'.\n"),
        ("--server --prot 2", 2, "'--port'?"),
        ("--server --temp=0.2 --ctx 7", 2, "go behind `--`: llama-run --server -- --temp 0.2\n"),
        ("--server=a --temp 1", 2, "go behind `--`: llama-run --server -- --temp 1\n"),
        ("--server -np 2", 2, "go behind `--`: llama-run --server -- -np 2\n"),
        ("--server --mlock --ctx 7", 2, "go behind `--`: llama-run --server -- --mlock\n"),
        ("--dry-run", 2, "--dry-run goes with --server"),
        ("--port 1", 2, "--port goes with --server"),
        ("--backend cpu", 2, "--backend goes with --server"),
        ("--download a/b --dry-run", 2, "--dry-run goes with --server"),
        ("--dry-run build", 2, "--dry-run does not go with `build`"),
        ("--list-models --server", 2, "do not go with --server"),
        ("-- --temp 1", 2, "words behind `--` are for llama-server"),
        ("--server -- --port 0", 1, "error: '0' is not a port that a server can be found at"),
        ("--server --host x.sock", 1, "hint: add one: --host 127.0.0.1,x.sock"),
        ("--server missing --dry-run", 1, "hint: to get it: llama-run --download missing"),
        ("cache ls --url 127.0.0.1:1", 1, "error: no server answers at http://127.0.0.1:1"),
        ("--server --port 0", 2, "0 is not in the range"),
        ("--server --port 70000", 2, "70000 is not in the range"),
        ("--server --ctx -1", 2, "-1 is not in the range"),
        ("--server --cache-ssd x --no-cache-ssd", 2, "--cache-ssd and --no-cache-ssd do not go together"),
        ("cache ls --url http://127.0.0.1:1 --model f1", 2, "--url asks a server"),
        ("cache ls --url http://127.0.0.1:1", 1, "error: no server answers at http://127.0.0.1:1"),
        ("--server --backend abacus", 2, "'abacus' is not"),
        ("build --backend abacus", 2, "'abacus' is not"),
        ("build --target z80", 1, "error: 'z80' is neither an instruction set nor a processor"),
        ("build --rocm-sdk none.tar.gz", 1, "error: there is no file none.tar.gz"),
        ("--list-backends build", 2, "--list-backends does not go with `build`"),
        ("--server missing --dry-run", 1, "error: no model is called 'missing'"),
        ("--server /no/such.gguf --dry-run", 1, "error: there is no file /no/such.gguf"),
        ("--server build", 1, "error: no model is called 'build'"),
        ("--print-profile", 2, "--print-profile goes with --server"),
        ("--server --print-profile --noauto", 2, "--noauto leaves no profile to print"),
        ("--list-models build", 2, "--list-models does not go with `build`"),
        ("build -- x", 2, "words behind `--` are for llama-server"),
        ("build --into x", 2, "--into goes with --export-patches"),
        ("--server --no-build", 1, "error: llama-server is not built yet"),
        ("--quant Q4_K_M", 2, "--quant and --mmproj go with --download"),
        ("--server --mmproj", 2, "--quant and --mmproj go with --download"),
        ("--download a/b --server", 2, "--download goes alone"),
        ("--download a/b build", 2, "--download does not go with `build`"),
        ("--download a/b:Q4_K_M --quant Q8_0", 2, "':Q4_K_M' and --quant Q8_0 contradict each other"),
        ("--download a/b/c", 1, "error: 'a/b/c' is not the name of a repository"),
    ],
)
def test_wrong_arguments_are_refused(
    clone: Path, capsys: pytest.CaptureFixture[str], arguments: str, code: int, expected: str
) -> None:
    actual, _, err = run(capsys, *arguments.split())
    assert expected in err
    assert actual == code


@pytest.mark.parametrize(
    ("arguments", "variable", "expected"),
    [
        ("", None, ["--cache-ssd", "{root}/kv-cache"]),
        ("", "/of/mine", ["--cache-ssd", "/of/mine"]),
        ("", "", []),  # off, as llama-server takes it
        ("--no-cache-ssd", None, []),
        ("--no-cache-ssd", "/of/mine", ["--cache-ssd", ""]),  # the variable would turn it on again
        ("--cache-ssd /here", "/of/mine", ["--cache-ssd", "/here"]),
        ("-- --cache-ssd /there", None, ["--cache-ssd", "/there"]),
        ("-- --cache_ssd /there", "/of/mine", ["--cache_ssd", "/there"]),
        ("--cache-ssd /here -- --cache-ssd /there", None, ["--cache-ssd", "/there"]),
        ("--no-cache-ssd -- --cache-ssd /there", None, ["--cache-ssd", "/there"]),
    ],
)
def test_right_cache_folder_wins(
    clone: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: str,
    variable: str | None,
    expected: list[str],
) -> None:
    if variable is not None:
        monkeypatch.setenv("LLAMA_ARG_CACHE_SSD", variable)
    code, out, _ = run(capsys, "--server", "--dry-run", *arguments.split())
    words = shlex.split(out)
    found = [i for i, word in enumerate(words) if word in ("--cache-ssd", "--cache_ssd")]
    assert code == 0 and len(found) == bool(expected)
    assert not found or words[found[0] : found[0] + 2] == [word.format(root=clone) for word in expected]
    assert not (clone / "kv-cache").exists(), "a dry run makes nothing"


def test_folder_that_cannot_hold_the_cache_is_found_out_before_loading(
    clone: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyrun.cli.server.check_port", lambda host, port: None)
    monkeypatch.setattr("pyrun.cli.server.ensure_built", lambda home, options: pytest.fail("it is late to say so"))
    (clone / "file").write_text("x")
    (clone / "photos").mkdir()
    (clone / "photos" / "cat.jpg").write_text("x")
    (clone / "locked").mkdir(mode=0o500)
    expected = {
        "file": "it is not a folder",
        "file/below": "it is not a folder",
        "photos": "it holds other things, such as cat.jpg",
        "/proc/cache": "No such file or directory",
    }
    if os.geteuid() != 0:
        expected["locked"] = "no permission to write there"
    for folder, why in expected.items():
        code, _, err = run(capsys, "--server", "--cache-ssd", folder)
        assert code == 1 and f"{clone / folder} cannot hold the cache: {why}" in err, err
        assert "hint: " in err and "--cache-ssd" in err.split("hint: ")[1]
    assert [entry.name for entry in (clone / "photos").iterdir()] == ["cat.jpg"]


def test_cache_folder_is_closed_to_others(
    clone: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyrun.cli.server.check_port", lambda host, port: None)
    monkeypatch.setattr("pyrun.cli.server.ensure_built", lambda home, options, snapshot: None)
    monkeypatch.setattr("pyrun.cli.server.ensure_default_model", lambda home: None)
    monkeypatch.setattr("pyrun.cli.server.supervise", lambda home, settings, *rest: None)
    assert run(capsys, "--server", "--cache-ssd", "new/cache")[0] == 0
    assert (clone / "new" / "cache").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("extra", "variable", "expected"),
    [
        ("", None, None),
        ("--api-key a,b", None, "a"),
        ("--api_key a", "c", "a"),
        ("", "c,d", "c"),
        ("--api-key-file {root}/keys", None, "e"),
        ("--api-key-file {root}/none", None, None),
        ("--api-key", None, None),
        ("--api-key ,", None, None),
    ],
)
def test_key_for_own_questions_is_found(tmp_path: Path, extra: str, variable: str | None, expected: str | None) -> None:
    (tmp_path / "keys").write_text("\n# comment\ne\nf\n")
    environment = {} if variable is None else {"LLAMA_API_KEY": variable}
    found = find_key(tuple(extra.format(root=tmp_path).split()), environment)
    assert (found.value if found else None) == expected


@pytest.mark.parametrize(
    ("extra", "expected"), [((), "/from-variable"), (("--api-prefix", "/x"), "/x"), (("--api-prefix", ""), "")]
)
def test_empty_prefix_counts(extra: tuple[str, ...], expected: str) -> None:
    address = choose_address(None, None, extra, {"LLAMA_ARG_API_PREFIX": "/from-variable"})
    assert address.url == f"http://127.0.0.1:9090{expected}"


@pytest.mark.parametrize(
    ("arguments", "variables", "warns"),
    [
        ("", {}, False),
        ("--host 0.0.0.0", {}, True),
        ("-- --host 0.0.0.0", {}, True),
        ("-- --host 127.0.0.1,0.0.0.0", {}, True),
        ("", {"LLAMA_ARG_HOST": "0.0.0.0"}, True),
        ("--host 127.0.0.1", {"LLAMA_ARG_HOST": "0.0.0.0"}, False),
        ("--host LOCALHOST,[::1]", {}, False),
        ("--host 0.0.0.0 -- --host 127.0.0.1", {}, False),
        ("--host 0.0.0.0 -- --api-key x", {}, False),
        ("--host 0.0.0.0", {"LLAMA_API_KEY": "x"}, False),
        ("--host 0.0.0.0", {"LLAMA_API_KEY": ""}, True),  # none, as llama-server takes it
    ],
)
def test_open_server_without_a_key_is_warned_about(
    clone: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: str,
    variables: dict[str, str],
    warns: bool,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    err = run(capsys, "--server", "--dry-run", *arguments.split())[2]
    assert ("warning: 0.0.0.0 can be reached from other machines" in err) is warns


def test_help_says_of_commands_what_they_say_of_themselves() -> None:
    context = click.Context(cli)
    told = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    assert {name: command.get_short_help_str(limit=200) for name, command in told.items() if command} == Root.BRIEFLY


def test_version_and_help_load_nothing_that_is_slow() -> None:
    slow = ("rich", "requests", "psutil", "importlib.metadata", "pyrun._kernels", "pyrun.cli.build", "pyrun.console")
    program = (
        "import sys; from pyrun.cli.main import cli; cli.main(['--help'], standalone_mode=False); "
        f"print([name for name in {slow} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("huggingface_hub.errors", "LLAMA_RUN_EXTRAS=download ./llama-run --version"),
        ("ruamel.yaml", "LLAMA_RUN_EXTRAS=connect ./llama-run --version"),
        ("mcp", "LLAMA_RUN_EXTRAS=tools ./llama-run --version"),
    ],
)
def test_missing_package_is_named_with_what_installs_it(name: str, expected: str) -> None:
    found = explain_import(ImportError(f"No module named '{name}'", name=name))
    assert found is not None and found.message == f"the package {name.partition('.')[0]} is not installed"
    assert found.hint == f"install it: {expected}"


def test_import_that_fails_for_another_reason_is_not_explained_away() -> None:
    assert explain_import(ImportError("cannot import name 'x' from 'pyrun.y'", name="pyrun.y")) is None


def test_extras_are_those_of_the_project() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(EXTRAS) == set(listed) - {"clone", "test"}


def test_address_without_http_is_understood() -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"path": "%s"}' % self.path.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever).start()
        for url in (f"127.0.0.1:{server.server_port}", f"localhost:{server.server_port}/"):
            assert ask(url, "/cache") == {"path": "/cache"}
        server.shutdown()


def test_one_of_several_models_is_not_guessed(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (clone / "models" / "a.gguf").write_bytes(gguf_bytes())
    code, out, err = run(capsys, "--server", "--dry-run")
    assert code == 0 and "/models/a.gguf" in out and "the only model" in err
    (clone / "models" / "b.gguf").write_bytes(gguf_bytes())
    code, _, err = run(capsys, "--server", "--dry-run")
    assert code == 1 and "there are several models" in err and "hint: llama-run --server a\n" in err
    (clone / "models" / "a.gguf").write_bytes(gguf_bytes()[:-1])
    err = run(capsys, "--server", "--dry-run")[2]
    assert "  a (cannot be served)\n  b\n" in err and "hint: llama-run --server b\n" in err
    (clone / "models" / "b.gguf").write_bytes(b"no model")
    assert "hint: `llama-run --list-models` says what is wrong\n" in run(capsys, "--server", "--dry-run")[2]


def test_list_of_models_leaves_nothing_out(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = gguf_bytes()
    for name, data in {
        "a-Q4_K_M.gguf": gguf_bytes({"llama.context_length": 8192}),
        "cut.gguf": whole[:-1],
        "page.gguf": b"<!DOCTYPE html>" + b" " * 100,
        "mmproj-a-F16.gguf": whole,
        "vision.gguf": gguf_bytes({"general.architecture": "clip"}),
        **{f"set-{n:05d}-of-00005.gguf": whole for n in (1, 2, 4, 5)},
        **{f"two-{n:05d}-of-00002.gguf": whole for n in (1, 2)},
    }.items():
        (clone / "models" / name).write_bytes(data)
    code, out, err = run(capsys, "--list-models")
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in out.splitlines()}
    assert code == 0 and err == ""
    assert lines["a-Q4_K_M"] == f"llama {size(len(whole))} Q4_K_M 8,192 - yes, with 8,192 tokens"
    assert lines["two"] == f"llama {size(2 * len(whole))} F32 4,096 - yes, with 4,096 tokens"
    assert f"broken: is cut off: {len(whole) - 1:,} of {len(whole):,} bytes are there" in lines["cut"]
    assert "broken: is a web page, not a GGUF file" in lines["page"]
    assert "missing part 3 of 5" in lines["set"] and "set-00003-of-00005.gguf" in lines["set"]
    assert "companion of a model: mmproj-a-F16.gguf" in out and "companion of a model: vision.gguf" in out
    assert len(out.splitlines()) == 8


def test_both_lists_are_shown(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (clone / "models" / "a.gguf").write_bytes(gguf_bytes())
    code, out, _ = run(capsys, "--list-backends", "--list-models")
    models, backends = out.split("\n\n")
    assert code == 0 and models.splitlines()[1].startswith("a ") and backends.splitlines()[-1].startswith("auto is ")


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("cut", gguf_bytes()[:-1], "cut.gguf: is cut off:"),
        ("text", b"no model" * 10, "text.gguf: is not a GGUF file"),
        ("set-00002-of-00003", gguf_bytes(), "set is incomplete; missing parts in"),
        ("vision", gguf_bytes({"general.architecture": "clip"}), "is a companion of a model (clip), not a model"),
    ],
)
@pytest.mark.parametrize("flags", [(), ("--noauto",)])
def test_broken_model_is_not_started(
    clone: Path, capsys: pytest.CaptureFixture[str], name: str, data: bytes, expected: str, flags: tuple[str, ...]
) -> None:
    (clone / "models" / f"{name}.gguf").write_bytes(data)
    for wanted in (f"models/{name}.gguf", ""):  # by its path, and as the only one there is
        code, _, err = run(capsys, "--server", *([wanted] if wanted else []), "--no-build", *flags)
        assert code == 1 and expected in err and "hint: " in err
        assert "not built" not in err  # said before anything is built


def test_set_without_its_third_part_is_not_started(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for n in (1, 2, 4, 5):
        (clone / "models" / f"set-{n:05d}-of-00005.gguf").write_bytes(gguf_bytes())
    code, _, err = run(capsys, "--server", "set", "--no-build")
    assert code == 1 and "error: set is incomplete; missing part 3 of 5 in" in err and "set-00003-of-00005.gguf" in err


def test_profile_is_explained(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (clone / "models" / "a.gguf").write_bytes(gguf_bytes())
    code, out, _ = run(capsys, "--server", "--print-profile", "--", "-b", "99")
    assert code == 0 and "a: llama, dense, F32" in out and "known from: metadata" in out
    assert re.search(r"context +4096 +all that the model was trained for", out)
    assert "--ctx-size 4096" in out.splitlines()[-1]


def test_noauto_decides_nothing(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (clone / "models" / "a.gguf").write_bytes(gguf_bytes())
    _, auto, _ = run(capsys, "--server", "--dry-run")
    _, plain, _ = run(capsys, "--server", "--dry-run", "--noauto")
    assert "--ctx-size 4096" in auto and "--threads" in auto
    assert "--ctx-size" not in plain and "--threads" not in plain
    assert "--ctx-size 77" in run(capsys, "--server", "--dry-run", "--noauto", "--ctx", "77")[1]
    # What stands behind -- is said once, and by the user.
    assert "--ctx-size" not in run(capsys, "--server", "--dry-run", "--", "-c", "55")[1]


def test_model_that_cannot_fit_is_not_built_for(
    clone: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (clone / "models" / "a.gguf").write_bytes(gguf_bytes())
    code, _, err = run(capsys, "--server", "--ctx", "2000000000", "--no-build")
    assert code == 1 and "a does not fit: 2,000,000,000 tokens of context need" in err
    assert "hint: the largest context that fits is " in err
    _, out, _ = run(capsys, "--server", "--ctx", "2000000000", "--dry-run", "--noauto")
    assert "--ctx-size 2000000000" in out


def test_folder_that_is_no_clone_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_RUN_HOME", str(tmp_path))
    assert "is not a checkout of llama-run" in run(capsys, "--list-models")[2]


def test_cli_page_is_generated_from_the_commands() -> None:
    assert (ROOT / "docs" / "cli.md").read_text() == cli_page(), "run `python scripts/write_docs.py`"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59, "59 s"), (75, "1 min 15 s"), (3700, "1 h 1 min"), (200_000, "2 d 7 h")],
)
def test_durations_are_said_in_words(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (4096, "4.1 kB"), (999_999, "1.0 MB"), (5.3e9, "5.30 GB"), (2e13, "20.00 TB")],
)
def test_sizes_are_said_in_words(n_bytes: float, text: str) -> None:
    assert size(n_bytes) == text
