"""Upstream's web page is made by npm where a person can see it; where npm cannot, the server is built without it.

npm is played by scripts: what it does with packages is its own business.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from helpers import is_running, wait_until

from pyrun import console
from pyrun.build import builder, upstream_page
from pyrun.build.builder import BuildRequest, build, has_web_ui, take_snapshot
from pyrun.build.toolchain import Toolchain
from pyrun.build.upstream_page import make_page, place_page
from pyrun.home import Home
from pyrun.machine.snapshot import Snapshot
from pyrun.upstream.pin import Pin
from pyrun.upstream.source import Source

MAKES = """echo "npm http fetch GET 200 svelte"
case $1 in run) mkdir -p "$LLAMA_UI_OUT_DIR" && cp page.svelte "$LLAMA_UI_OUT_DIR/index.html" ;; esac"""
IS_OFFLINE = """echo "npm http fetch GET svelte attempt 2 failed with ENOTFOUND"
echo "npm error code ENOTFOUND"; echo "npm error A complete log of this run can be found in: x"; exit 1"""
IS_TOO_OLD = """case $1 in run) echo "SyntaxError: a newer node is needed"; exit 3 ;; esac"""
HANGS = """sleep 600 & echo $! > "$CALLS.child"; echo "npm http fetch GET 200 svelte"; wait"""
NINJA = '#!/bin/sh\nmkdir -p "$2/bin" && touch "$2/bin/llama-server" "$2/build.ninja"\n'
PIN = Pin("p", "1", "p-1.tar.gz", "0" * 64, "vendor", "r", "0123456789" * 4, "f" * 40)


class Npm:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "npm"
        self.calls_file = folder / "calls"

    def does(self, script: str) -> None:
        self.path.write_text(f'#!/bin/sh\necho "$*" >> "$CALLS"\n{script}\n')
        self.path.chmod(0o755)

    def calls(self) -> list[str]:
        return self.calls_file.read_text().splitlines() if self.calls_file.exists() else []


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Npm:
    played = Npm(tmp_path)
    played.does(MAKES)
    monkeypatch.setenv("CALLS", str(played.calls_file))
    return played


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "ui"
    folder.mkdir()
    (folder / "page.svelte").write_text("<p>hello</p>")
    return folder


def test_page_is_made_once_for_its_sources(tmp_path: Path, npm: Npm, sources: Path) -> None:
    page = make_page(str(npm.path), sources, tmp_path / "page")
    assert page is not None and (page / "index.html").read_text() == "<p>hello</p>"
    assert make_page(str(npm.path), sources, tmp_path / "page") == page
    assert make_page(None, sources, tmp_path / "page") == page
    assert npm.calls() == ["ci", "run build"]
    assert sorted(path.name for path in (tmp_path / "page").iterdir()) == ["dist", "made-of", "npm.log"]
    (sources / "page.svelte").write_text("<p>good evening</p>")
    assert make_page(None, sources, tmp_path / "page") is None
    page = make_page(str(npm.path), sources, tmp_path / "page")
    assert page is not None and (page / "index.html").read_text() == "<p>good evening</p>"


def test_person_sees_what_npm_does_and_how_to_leave_it_out(
    tmp_path: Path, npm: Npm, sources: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console.Progress, "LINE_SECONDS", 0.0)
    make_page(str(npm.path), sources, tmp_path / "page")
    shown = capsys.readouterr().err.splitlines()
    assert shown[0] == (
        "making upstream's web page with npm, which loads its packages; `llama-run build --no-web-ui` builds without it"
    )
    for part in ("npm ci", "npm run build"):
        assert any(re.fullmatch(rf"{part}: \d+ s: npm http fetch GET 200 svelte", line) for line in shown), shown
    assert shown[-1].startswith("the web page is made, in ")


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (IS_OFFLINE, "npm ci failed with exit code 1: npm cannot reach its registry (ENOTFOUND)"),
        (IS_TOO_OLD, "npm run build failed with exit code 3: SyntaxError: a newer node is needed"),
        ("true", "npm made no index.html"),
    ],
)
def test_failure_of_npm_is_said_in_a_line(
    tmp_path: Path, npm: Npm, sources: Path, capsys: pytest.CaptureFixture[str], script: str, reason: str
) -> None:
    npm.does(script)
    assert make_page(str(npm.path), sources, tmp_path / "page") is None
    shown = capsys.readouterr().err
    assert f"no web page: {reason}; the server is built without it, and shows a small page of ours\n" in shown
    assert f"the full log is {tmp_path / 'page' / 'npm.log'}\n" in shown


def test_npm_that_hangs_is_ended_with_all_that_it_started(
    tmp_path: Path, npm: Npm, sources: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    npm.does(HANGS)
    monkeypatch.setattr(upstream_page, "SILENCE_SECONDS", 5)
    started = time.monotonic()
    assert make_page(str(npm.path), sources, tmp_path / "page") is None
    assert time.monotonic() - started < 60, "it waited for the child"
    assert "npm has said nothing for" in capsys.readouterr().err
    child = int(npm.calls_file.with_suffix(".child").read_text())
    wait_until(lambda: not is_running(child), 60, "what npm started is gone")


def test_page_goes_where_upstream_embeds_it_from_and_away(tmp_path: Path, npm: Npm, sources: Path) -> None:
    page = make_page(str(npm.path), sources, tmp_path / "page")
    index = tmp_path / "build" / "tools" / "ui" / "dist" / "index.html"
    place_page(page, tmp_path / "build")
    assert index.read_text() == "<p>hello</p>"
    place_page(None, tmp_path / "build")
    assert not index.exists()


@pytest.fixture
def home(tmp_path: Path, npm: Npm, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home whose build compiles nothing."""
    made = Home(tmp_path / "home")
    made.kernels.mkdir(parents=True)
    (made.source / "tools" / "ui").mkdir(parents=True)
    (made.source / "tools" / "ui" / "page.svelte").write_text("<p>hello</p>")
    ninja = tmp_path / "ninja"
    ninja.write_text(NINJA)
    ninja.chmod(0o755)
    tools = Toolchain("c++", "true", str(ninja), None, str(npm.path))
    monkeypatch.setattr(builder, "find_toolchain", lambda: tools)
    monkeypatch.setattr(
        "pyrun.build.builder.source.prepare",
        lambda home, origin, clean: Source(home.source, PIN, "c0ffee", edited=False),
    )
    return made


@pytest.fixture
def snapshot(home: Home) -> Snapshot:
    return take_snapshot(home, "cpu")


def test_start_leaves_the_page_as_it_was_built(home: Home, npm: Npm, snapshot: Snapshot) -> None:
    start, without, with_page = BuildRequest(), BuildRequest(web_ui=False), BuildRequest(web_ui=True)
    assert build(home, without, snapshot).changed
    assert not build(home, start, snapshot).changed and npm.calls() == []
    assert build(home, with_page, snapshot).changed and has_web_ui(home, "cpu")
    assert not build(home, start, snapshot).changed and has_web_ui(home, "cpu")
    assert build(home, without, snapshot).changed and not has_web_ui(home, "cpu")


def test_server_is_built_without_a_page_that_cannot_be_made(home: Home, npm: Npm, snapshot: Snapshot) -> None:
    npm.does(IS_OFFLINE)
    assert build(home, BuildRequest(), snapshot).server.exists() and not has_web_ui(home, "cpu")
    assert not build(home, BuildRequest(), snapshot).changed, "a start would wait for npm each time"
    assert npm.calls() == ["ci"]
    npm.does(MAKES)
    assert build(home, BuildRequest(web_ui=True), snapshot).changed and has_web_ui(home, "cpu")


def test_backends_share_one_page(home: Home, npm: Npm, snapshot: Snapshot) -> None:
    build(home, BuildRequest(), snapshot)
    build(home, BuildRequest(target="portable"), snapshot)
    assert has_web_ui(home, "cpu-portable") and npm.calls() == ["ci", "run build"]
