"""`llama-run connect`: what agents are told, and that their own settings survive it."""

from __future__ import annotations

import json
import resource
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import tomlkit
from ruamel.yaml import YAML

from pyrun.agents.endpoint import Endpoint, find_endpoint
from pyrun.agents.known import AGENTS, User
from pyrun.agents.merge import UnmergeableError, merge, render
from pyrun.agents.setup import ConfigFile, Format
from pyrun.agents.write import apply, plan
from pyrun.cli.main import main
from pyrun.errors import UserError

AT = Endpoint("http://127.0.0.1:9090", "Qwen3-14B.Q4_K_M", 32768)


class Served(BaseHTTPRequestHandler):
    """The two answers of a server that are asked for."""

    models: tuple[str, ...] = ("toy",)
    context: object = 8192
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        about = {"/v1/models": {"data": [{"id": name} for name in self.models]}}
        props = {"default_generation_settings": {"n_ctx": self.context}}
        content = json.dumps(about.get(self.path.split("?")[0], props)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Served)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        main(["connect", *arguments])
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, " ".join(captured.err.split())


def parse(text: str, kind: Format) -> Any:
    if kind is Format.JSON:
        return json.loads(text)
    return tomlkit.parse(text).unwrap() if kind is Format.TOML else YAML(typ="safe").load(text)


# The server.


def test_the_server_says_model_and_context(url: str) -> None:
    assert find_endpoint(url + "/", None) == find_endpoint(f"{url}/v1", None) == Endpoint(url, "toy", 8192)


def test_several_models_are_a_choice(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Served, "models", ("small", "large"))
    assert find_endpoint(url, None, "large").model == "large"
    for wanted, message in ((None, "serves several models"), ("huge", "does not serve huge")):
        with pytest.raises(UserError, match=message) as caught:
            find_endpoint(url, None, wanted)
        assert caught.value.hint == "choose one with --model: small, large"


def test_a_model_is_named_whatever_its_name(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Served, "asked", [])
    monkeypatch.setattr(Served, "models", ("small", "a&b #1"))
    assert find_endpoint(url, None, "a&b #1").model == "a&b #1"
    assert Served.asked[-1] == "/props?model=a%26b%20%231"


def test_the_address_may_lack_its_scheme(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "codex", "--url", url.removeprefix("http://"))
    assert code == 0 and f'base_url = "{url}/v1"' in out and f"toy at {url}" in err


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY", "ALL_PROXY"])
def test_a_proxy_is_not_asked_for_this_machine(url: str, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    for address in (url, url.replace("127.0.0.1", "LOCALHOST")):
        assert find_endpoint(address, None).model == "toy"


def test_a_list_of_keys_is_not_a_key(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_API_KEY", "first,second")
    _, out, err = run(capsys, "codex", "--url", url)
    assert "export LLAMA_API_KEY=first\n" in out and "LLAMA_API_KEY has to be set where it runs" in err


def test_a_server_without_model_or_context_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Served, "context", None)
    with pytest.raises(UserError, match="does not say how long the context is"):
        find_endpoint(url, None)
    monkeypatch.setattr(Served, "models", ())
    with pytest.raises(UserError, match="serves no model"):
        find_endpoint(url, None)


def test_no_server_is_an_error_with_a_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "codex", "--url", "http://127.0.0.1:9")
    assert (code, out) == (1, "")
    assert err == "error: no server answers at http://127.0.0.1:9 hint: start one with `llama-run --server`"


# What agents are told.


@pytest.mark.parametrize("agent", AGENTS)
def test_every_agent_learns_address_model_and_context(agent: str, tmp_path: Path) -> None:
    setup = AGENTS[agent](AT, User(tmp_path, {}))
    told = "".join(map(render, setup.files)) + json.dumps(dict(setup.environment)) + " ".join(setup.notes)
    assert AT.url in told and AT.model in told
    assert str(AT.context) in told or agent in ("llm", "open-webui"), "these two have no setting for it"
    assert all(file.path.is_relative_to(tmp_path) for file in setup.files)


@pytest.mark.parametrize("agent", AGENTS)
def test_every_agent_gets_the_key_or_the_name_of_its_variable(agent: str, tmp_path: Path) -> None:
    setup = AGENTS[agent](Endpoint(AT.url, AT.model, AT.context, "s3cret"), User(tmp_path, {}))
    told = "".join(map(render, setup.files)) + json.dumps(dict(setup.environment)) + " ".join(setup.notes)
    assert "s3cret" in told
    assert all(file.secret for file in setup.files if "s3cret" in render(file)), "others cannot read them"
    if agent == "codex":
        assert 'env_key = "LLAMA_API_KEY"' in render(setup.files[0]), "keys stay out of Codex's file"


@pytest.mark.parametrize(
    ("agent", "variable", "file"),
    [
        ("claude-code", "CLAUDE_CONFIG_DIR", "settings.json"),
        ("codex", "CODEX_HOME", "config.toml"),
        ("continue", "CONTINUE_GLOBAL_DIR", "config.yaml"),
        ("llm", "LLM_USER_PATH", "extra-openai-models.yaml"),
        ("llm", "XDG_CONFIG_HOME", "io.datasette.llm/extra-openai-models.yaml"),
        ("zed", "XDG_CONFIG_HOME", "zed/settings.json"),
    ],
)
def test_settings_are_where_the_agent_looks(agent: str, variable: str, file: str, tmp_path: Path) -> None:
    setup = AGENTS[agent](AT, User(tmp_path / "home", {variable: str(tmp_path / "elsewhere")}))
    assert setup.files[0].path == tmp_path / "elsewhere" / file


def test_an_answer_leaves_most_of_a_small_context_to_the_prompt() -> None:
    assert [Endpoint("", "", n).answer for n in (1, 8192, 32768, 1 << 20)] == [1, 2048, 8192, 16384]


# Merging.

KEPT = {
    Format.JSON: '{\n    "theme": "dark",\n    "list": [{"name": "b", "x": 1}, {"name": "a", "y": 2}]\n}\n',
    Format.TOML: '# mine\ntheme = "dark" # really\n\n[[list]]\nname = "b"\nx = 1\n\n[[list]]\nname = "a"\ny = 2\n',
    Format.YAML: "# mine\ntheme: dark # really\nlist:\n  - name: b\n    x: 1\n  - name: a\n    y: 2\n",
}


@pytest.mark.parametrize("kind", Format)
def test_merging_keeps_everything_else(kind: Format) -> None:
    content = {"model": "m", "list": [{"name": "a", "z": 3}, {"name": "c"}], "deep": {"er": {"x": 1}}}
    merged = merge(KEPT[kind], ConfigFile(Path("any"), kind, content))
    assert parse(merged, kind) == {
        "theme": "dark",
        "list": [{"name": "c"}, {"name": "b", "x": 1}, {"name": "a", "y": 2, "z": 3}],
        "model": "m",
        "deep": {"er": {"x": 1}},
    }
    if kind is not Format.JSON:
        assert merged.startswith("# mine\n") and "# really" in merged
    else:
        assert '\n    "model"' in merged, "indented as it was"


@pytest.mark.parametrize("kind", Format)
def test_merging_twice_changes_nothing(kind: Format) -> None:
    wanted = ConfigFile(Path("any"), kind, {"model": "m", "list": [{"name": "a", "z": 3}], "deep": {"er": 1}})
    once = merge(KEPT[kind], wanted)
    assert merge(once, wanted) == once


@pytest.mark.parametrize("agent", AGENTS)
def test_settings_of_every_agent_can_be_read_back(agent: str, tmp_path: Path) -> None:
    for file in AGENTS[agent](AT, User(tmp_path, {})).files:
        assert parse(render(file), file.format) == file.content


@pytest.mark.parametrize(
    ("kind", "text", "problem"),
    [
        (Format.JSON, "// Zed settings\n{}\n", "has comments"),
        (Format.JSON, '{\n  "a": 1 // mine\n}', "has comments"),
        (Format.JSON, '{"a": "https://x/*",}', "is not JSON"),
        (Format.JSON, '{"a": 1,}', "is not JSON"),
        (Format.JSON, '{"a": "\\ud800"}', "has half a character"),
        (Format.JSON, '{"a": ' * 100_000, "is nested too deeply"),
        (Format.JSON, "[1]", "has list where model belong"),
        (Format.TOML, "a = = 1", "is not TOML"),
        (Format.YAML, "a: [1", "is not YAML"),
        (Format.YAML, "- a\n", "where model belong"),
        (Format.YAML, "[" * 100_000, "is nested too deeply"),
        (Format.YAML, "%YAML 1.2\n# mine\n---\na: 1\n", "begins or ends a document"),
        (Format.YAML, "a: 1\n...\n# mine\n", "begins or ends a document"),
        (Format.YAML, "null\n", "cannot be added to"),
    ],
)
def test_what_cannot_be_merged_is_told(kind: Format, text: str, problem: str) -> None:
    with pytest.raises(UnmergeableError, match=problem):
        merge(text, ConfigFile(Path("any"), kind, {"model": "m"}))


def test_comments_alone_are_kept() -> None:
    for text in ("# mine\n\n# model: old\n", "# mine"):
        merged = merge(text, ConfigFile(Path("any"), Format.YAML, {"model": "m"}))
        assert merged == f"{text.rstrip()}\nmodel: m\n"


def test_an_anchor_is_not_changed_through_its_alias() -> None:
    text = "other: &it\n  er: 1\ndeep: *it\n"
    with pytest.raises(UnmergeableError, match="cannot be added to"):
        merge(text, ConfigFile(Path("any"), Format.YAML, {"deep": {"er": 2}}))
    kept = merge(text, ConfigFile(Path("any"), Format.YAML, {"model": "m"}))
    assert kept == text + "model: m\n"


@pytest.mark.parametrize("kind", Format)
def test_line_ends_stay_as_they_were(kind: Format, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(KEPT[kind].replace("\n", "\r\n").encode())
    wanted = ConfigFile(path, kind, {"model": "m"})
    apply(plan(wanted))
    assert path.read_bytes().decode() == merge(KEPT[kind], wanted).replace("\n", "\r\n")


# Writing.


def test_the_file_of_before_is_kept_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text('{"a": 1}')
    path.chmod(0o640)
    kept = [apply(plan(ConfigFile(path, Format.JSON, {"b": 1})))]
    path.write_text(path.read_text())  # by somebody else
    kept.append(apply(plan(ConfigFile(path, Format.JSON, {"b": 2}))))
    assert [json.loads(one.read_text()) for one in kept if one] == [{"a": 1}, {"a": 1, "b": 1}]
    assert [one.name for one in kept if one] == ["settings.json.before-llama-run", "settings.json.before-llama-run-2"]
    assert json.loads(path.read_text()) == {"a": 1, "b": 2}
    assert path.stat().st_mode & 0o777 == 0o640
    assert not plan(ConfigFile(path, Format.JSON, {"b": 2})).is_needed


def test_half_a_copy_does_not_pass_for_the_file_of_before(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    before = json.dumps({"a": "x" * 20_000})
    path.write_text(before)
    change = plan(ConfigFile(path, Format.JSON, {"b": 1}))
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limit[1]))
    try:
        with pytest.raises(UserError, match=r"settings\.json cannot be written: File too large"):
            apply(change)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert list(tmp_path.iterdir()) == [path] and path.read_text() == before


def test_a_new_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "new" / "config.toml"
    assert apply(plan(ConfigFile(path, Format.TOML, {"key": "secret"}))) is None
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_of_ours_is_not_kept_unless_it_was_changed(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    assert [apply(plan(ConfigFile(path, Format.JSON, {"key": n}))) for n in range(3)] == [None] * 3
    assert [one.name for one in tmp_path.iterdir()] == ["settings.json"]
    path.write_text('{"key": 7}')
    assert apply(plan(ConfigFile(path, Format.JSON, {"key": 8}))) is not None


def test_a_key_makes_its_file_and_the_one_of_before_private(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text('{"key": "old"}')
    path.chmod(0o644)
    kept = apply(plan(ConfigFile(path, Format.JSON, {"key": "new"}, secret=True)))
    assert kept is not None and [one.stat().st_mode & 0o777 for one in (path, kept)] == [0o600, 0o600]
    path.chmod(0o644)
    again = plan(ConfigFile(path, Format.JSON, {"key": "new"}, secret=True))
    assert again.is_needed and again.is_open and apply(again) is None
    assert path.stat().st_mode & 0o777 == 0o600 and not plan(ConfigFile(path, Format.JSON, {"key": "new"})).is_needed


@pytest.mark.parametrize("agent", AGENTS)
def test_files_with_a_key_are_known(agent: str, tmp_path: Path) -> None:
    for key in (None, "s3cret"):
        for file in AGENTS[agent](Endpoint(AT.url, AT.model, AT.context, key), User(tmp_path, {})).files:
            assert file.secret == ("s3cret" in render(file))


@pytest.mark.parametrize("before", [None, "{}"])
def test_what_an_agent_writes_meanwhile_is_not_overwritten(tmp_path: Path, before: str | None) -> None:
    path = tmp_path / "settings.json"
    if before is not None:
        path.write_text(before)
    change = plan(ConfigFile(path, Format.JSON, {"a": 1}))
    path.write_text('{"b": 2}')
    with pytest.raises(UserError, match="was changed by somebody else in the meantime"):
        apply(change)
    assert path.read_text() == '{"b": 2}'


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    real = tmp_path / "dotfiles" / "settings.json"
    real.parent.mkdir()
    real.write_text("{}")
    link = tmp_path / "settings.json"
    link.symlink_to(real)
    apply(plan(ConfigFile(link, Format.JSON, {"a": 1})))
    assert link.is_symlink() and json.loads(real.read_text()) == {"a": 1}


def test_a_folder_that_cannot_be_written_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be written") as caught:
        apply(plan(ConfigFile(tmp_path / "file" / "settings.json", Format.JSON, {"a": 1})))
    assert caught.value.hint == "--print shows what belongs there"


# The command.


def test_printing_writes_nothing(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "claude-code", "--url", url)
    assert code == 0 and f"export ANTHROPIC_BASE_URL={url}\n" in out
    assert json.loads(out[: out.index("export")])["env"]["CLAUDE_CODE_ATTRIBUTION_HEADER"] == "0"
    assert "toy" in err and not (Path.home() / ".claude").exists()


@pytest.mark.parametrize(("answer", "written"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_writing_asks_first(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, answer: str, written: bool
) -> None:
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda prompt: answer.strip())
    monkeypatch.setattr("pyrun.console.is_interactive", lambda: True)
    code, _, err = run(capsys, "codex", "--url", url, "--write")
    assert (Path.home() / ".codex" / "config.toml").exists() == written
    assert (code == 0) == written and ("is written" in err) == written


def test_without_a_terminal_nobody_is_asked(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "codex", "--url", url, "--write")
    path = Path.home() / ".codex" / "config.toml"
    assert code == 1 and f"error: this would write {path} hint: add --yes" in err and not path.exists()


def test_a_key_in_an_open_file_is_said(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_API_KEY", "s3cret")
    path = Path.home() / ".aider.conf.yml"
    path.write_text("# mine\n")
    path.chmod(0o644)
    err = run(capsys, "aider", "--url", url, "--write", "--yes")[2]
    assert f"note: {path} has a key in it: from now on only you can read it" in err
    assert path.stat().st_mode & 0o777 == 0o600 and path.read_text().startswith("# mine\n")


def test_writing_twice_says_so(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("opencode", "--url", url, "--write", "--yes")
    assert run(capsys, *arguments)[0] == 0
    assert "opencode is set up already" in run(capsys, *arguments)[2]
    folder = Path.home() / ".config" / "opencode"
    assert [path.name for path in folder.iterdir()] == ["opencode.json"]


def test_settings_with_comments_are_left_alone_and_printed(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path.home() / ".config" / "zed" / "settings.json"
    path.parent.mkdir(parents=True)
    path.write_text("// mine\n{}\n")
    code, out, err = run(capsys, "zed", "--url", url, "--write", "--yes")
    assert code == 1 and path.read_text() == "// mine\n{}\n"
    assert json.loads(out)["agent"]["default_model"] == {"provider": "llama-run", "model": "toy"}
    assert "has comments, so it is left alone hint: add what is printed above to it by hand" in err


def test_one_bad_file_of_two_leaves_both_alone(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    (Path.home() / ".aider.model.metadata.json").write_text("{,}")
    assert run(capsys, "aider", "--url", url, "--write", "--yes")[0] == 1
    assert not (Path.home() / ".aider.conf.yml").exists()


def test_agents_without_a_file_are_printed(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "open-webui", "--url", url, "--write")
    assert code == 1 and f"OPENAI_API_BASE_URL={url}/v1" in out
    assert "open-webui has no settings file that could be written" in err


def test_yes_without_write_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "codex", "--yes")[0] == 2
