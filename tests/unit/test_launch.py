"""The whole launcher with a stand-in for llama-server: what a person sees of it, and how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import psutil
import pytest
from fakes.models import gguf_bytes
from helpers import ROOT, free_port, wait_until

from pyrun.cli.server import example
from pyrun.memory.recall import UserMemory
from pyrun.memory.spool import Record, write_spool
from pyrun.memory.store import Memory, key_of_user
from pyrun.server.address import Address, find_key
from pyrun.server.log import open_log

FAKE = ROOT / "tests" / "fakes" / "fake_server.py"
MODULE = (sys.executable, "-m", "pyrun")


class Launched:
    def __init__(self, clone: Path, port: int, arguments: list[str], variables: dict[str, str]) -> None:
        self.clone = clone
        self.port = port
        self.output = clone / "output"
        environment = {**os.environ, "LLAMA_RUN_HOME": str(clone), **variables}
        command = [*MODULE, "--server", "--backend", "cpu", "--no-build", *arguments]
        with self.output.open("w") as file:
            self.process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment)

    def said(self) -> str:
        return self.output.read_text()

    def wait_for(self, text: str, seconds: float = 120) -> None:
        wait_until(lambda: text in self.said() or self.process.poll() is not None, seconds, text, self.said)
        assert text in self.said(), self.said()

    def children(self) -> list[psutil.Process]:
        return list(psutil.Process(self.process.pid).children())


Launch = Callable[..., Launched]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """launch(FLAG, ..., variable=value): in a clone with one model and a server that is built, as far as one looks."""
    server = tmp_path / "llama.cpp" / "build" / "cpu" / "bin" / "llama-server"
    server.parent.mkdir(parents=True)
    server.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE}" --journal "{tmp_path}/journal" "$@"\n')
    server.chmod(0o755)
    (server.parents[1] / "llama-run-build.json").write_text("{}")
    shutil.copy(ROOT / "llama.cpp" / "upstream.toml", tmp_path / "llama.cpp")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a.gguf").write_bytes(gguf_bytes())
    started: list[Launched] = []

    def start(*arguments: str, port: int | None = None, **variables: str) -> Launched:
        port = port or free_port()
        words = [word.format(port=port) for word in arguments]
        given = {name: value.format(port=port) for name, value in variables.items()}
        started.append(Launched(tmp_path, port, words, given))
        return started[-1]

    yield start
    for one in started:
        children = one.children() if one.process.poll() is None else []
        one.process.kill()
        one.process.wait()
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):  # It may have ended with its launcher.
                child.kill()


@pytest.mark.parametrize(
    ("arguments", "variables"),
    [
        ("--port {port}", {}),
        ("-- --port {port}", {}),
        ("--port 1 -- --port {port}", {}),
        ("", {"LLAMA_ARG_PORT": "{port}"}),
        ("--host 127.0.0.1 -- --host 0.0.0.0,x.sock --port {port}", {"LLAMA_ARG_PORT": "1"}),
    ],
)
def test_port_that_is_named_elsewhere_is_watched(launch: Launch, arguments: str, variables: dict[str, str]) -> None:
    one = launch(*arguments.split(), **variables)
    one.wait_for(f"ready at http://127.0.0.1:{one.port} ")
    assert (one.clone / "logs" / f"server-{one.port}.log").exists()


@pytest.mark.parametrize(
    ("arguments", "variables"),
    [
        (["--api-key-file", "{clone}/key s"], {}),
        ([], {"LLAMA_API_KEY": "{key},c"}),
        ([], {"LLAMA_API_KEY": "{key}"}),
    ],
)
def test_printed_command_can_be_run(
    launch: Launch, tmp_path: Path, arguments: list[str], variables: dict[str, str]
) -> None:
    key = '$a"b'
    (tmp_path / "key s").write_text(f"# mine\n\n{key}\n")
    words = [word.replace("{clone}", str(tmp_path)) for word in arguments]
    given = {name: value.replace("{key}", key) for name, value in variables.items()}
    one = launch("--port", "{port}", "--", *words, **given)
    one.wait_for("try: curl")
    assert "cache: off: it is a fake" in one.said(), "our own question was refused"
    line = next(line for line in one.said().splitlines() if line.startswith("try: "))
    script = f"curl() {{ printf '%s\\n' \"$@\"; }}; {line.removeprefix('try: ')}"
    environment = {**os.environ, **given}
    shown = subprocess.run(["sh", "-c", script], capture_output=True, text=True, env=environment).stdout
    assert f"Authorization: Bearer {key}\n" in shown
    assert '"b' not in line.replace("\\", ""), "a key that was kept off the screen is shown"


def test_key_is_not_printed_into_a_file(launch: Launch) -> None:
    key = '$a"b'
    one = launch("--port", "{port}", "--", "--api-key", key)
    one.wait_for("try: curl")
    assert "Authorization: Bearer ***" in one.said() and key not in one.said() and "$a" not in one.said()
    script = f"curl() {{ printf '%s\\n' \"$@\"; }}; {example(Address(), find_key(('--api-key', key), {}), True)}"
    shown = subprocess.run(["sh", "-c", script], capture_output=True, text=True).stdout
    assert f"Authorization: Bearer {key}\n" in shown, "a person can copy it"


def test_path_of_the_log_is_kept_and_others_cannot_read_it(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir(mode=0o755)
    old = tmp_path / "logs" / "server-1.log.1"
    old.write_text("by an earlier version")
    old.chmod(0o644)
    one = launch("--port", "{port}")
    one.wait_for("ready at")
    log = tmp_path / "logs" / f"server-{one.port}.log"
    assert f"log: {log}\n" in one.said() and "loading a.gguf\n" in one.said()
    assert log.stat().st_mode & 0o777 == old.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "logs").stat().st_mode & 0o777 == 0o700


def test_folder_of_the_log_is_closed_to_others(launch: Launch, tmp_path: Path) -> None:
    launch("--port", "{port}").wait_for("ready at")
    assert (tmp_path / "logs").stat().st_mode & 0o777 == 0o700


def test_log_in_use_is_not_taken_away(launch: Launch, tmp_path: Path) -> None:
    log = tmp_path / "logs" / f"server-{free_port()}.log"
    with open_log(log) as file:
        file.write(b"of the other")
        file.flush()
        one = launch("--port", log.stem.removeprefix("server-"))
        assert (
            one.process.wait(30) == 1 and f"error: {log} is in use: " in one.said() and "another --port" in one.said()
        )
        assert log.read_text() == "of the other"


def test_folder_of_the_cache_is_looked_at_wherever_it_is_named(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    one = launch("--port", "{port}", "--", "--cache_ssd", str(tmp_path / "file"))
    assert one.process.wait(30) == 1
    assert f"error: {tmp_path / 'file'} cannot hold the cache: it is not a folder" in one.said()


def test_nohup_is_heard(launch: Launch) -> None:
    def start(inherited: signal.Handlers) -> Launched:
        before = signal.signal(signal.SIGHUP, inherited)
        try:
            return launch("--port", "{port}")
        finally:
            signal.signal(signal.SIGHUP, before)

    one = start(signal.SIG_IGN)
    one.wait_for("ready at")
    one.process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    assert one.process.poll() is None and "stopping" not in one.said()
    other = start(signal.SIG_DFL)  # whatever runs the tests may ignore it
    other.wait_for("ready at")
    other.process.send_signal(signal.SIGHUP)
    assert other.process.wait(20) == 0 and "stopped" in other.said()


def test_second_ctrl_c_is_not_swallowed(launch: Launch) -> None:
    one = launch("--port", "{port}", "--", "--save-seconds", "1000")
    one.wait_for("ready at")
    one.process.send_signal(signal.SIGINT)
    one.wait_for("stopping llama-server (Ctrl-C again kills it: what is not saved is evaluated again)")
    time.sleep(0.3)
    one.process.send_signal(signal.SIGINT)
    assert one.process.wait(20) == 0 and "stopped: killed after" in one.said()


def test_cache_that_stores_nothing_says_so(launch: Launch) -> None:
    words = ["0.01.234.567 W cache: not storing (no_space): the disk is full", "0.02.234.567 W cache: storing again"]
    one = launch("--port", "{port}", "--", *(word for line in words for word in ("--say", line)))
    one.wait_for("the cache is storing again")
    assert one.said().count("warning: the cache is not storing: the disk is full.") == 1
    assert "--cache-ssd-max-size" in one.said()


def test_no_space_is_advised_for_a_folder_that_is_gone(launch: Launch) -> None:
    reason = "/kv/f1: somebody removed this folder while it was in use; a restart makes it anew"
    one = launch("--port", "{port}", "--", "--say", f"0.01.234.567 W cache: not storing (io_error): {reason}")
    one.wait_for(f"warning: the cache is not storing: {reason}\n")
    assert "free space" not in one.said() and "--cache-ssd-max-size" not in one.said()


def test_ctrl_c_while_loading_ends_quietly(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import time\nprint('loading', flush=True)\ntime.sleep(30)\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(
        MODULE, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=20) == ("", "")
    assert process.returncode == -signal.SIGINT
    entry = next(e for e in metadata.entry_points(group="console_scripts") if e.name == "llama-run")
    assert entry.value == "pyrun.__main__:main", "the command goes the same way"


def test_built_in_model_is_not_called_slow(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "models" / "a.gguf").unlink()
    (tmp_path / "models" / "built-in").mkdir()
    built_in = tmp_path / "models" / "built-in" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    built_in.write_bytes(gguf_bytes())
    one = launch("--port", "{port}")
    one.wait_for("ready at")
    assert "is slow on" not in one.said()
    if re.match("aarch64|arm", os.uname().machine):
        shutil.copy(built_in, tmp_path / "models" / "mine.Q4_1.gguf")
        other = launch("--port", "{port}")
        other.wait_for("ready at")
        assert "note: Q4_1 is slow on ARM processors" in other.said()


def test_logs_of_ended_servers_go_with_the_wiping(launch: Launch, tmp_path: Path) -> None:
    ended = launch("--port", "{port}")
    ended.wait_for("ready at")
    ended.process.send_signal(signal.SIGINT)
    ended.process.wait(20)
    running = launch("--port", "{port}")
    running.wait_for("ready at")
    logs = tmp_path / "logs"
    kept, gone = logs / f"server-{running.port}.log", logs / f"server-{ended.port}.log"
    (logs / "of-somebody-else.log").touch()
    before = gone.stat().st_size
    command = [*MODULE, "cache", "rm", "--all"]
    environment = {**os.environ, "LLAMA_RUN_HOME": str(tmp_path)}
    asked = subprocess.run(command, capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL)
    assert asked.returncode == 1 and "this would remove 0 conversations and 1 log, " in asked.stderr
    narrow = subprocess.run([*command, "--yes", "--model", "f1"], capture_output=True, text=True, env=environment)
    assert narrow.returncode == 1 and gone.exists()
    other = [*command, "--yes", "--cache-ssd", str(tmp_path / "other")]
    (tmp_path / "other").mkdir()
    elsewhere = subprocess.run(other, capture_output=True, text=True, env=environment)
    assert "nothing is stored" in elsewhere.stderr and gone.exists()
    done = subprocess.run([*command, "--yes", "--json"], capture_output=True, text=True, env=environment)
    told = json.loads(done.stdout)
    assert (told["logs"], told["bytes_freed"]) == ([str(gone)], before)
    assert sorted(logs.iterdir()) == [logs / "of-somebody-else.log", kept]


def test_what_left_a_chat_is_taken_in_while_the_server_runs_and_at_its_end(launch: Launch, tmp_path: Path) -> None:
    memory = tmp_path / "memory"

    def leave(number: int) -> Path:
        message = {"role": "user", "content": f"number {number}"}
        return write_spool(memory / "spool", key_of_user(""), "00000000000000aa", [Record(number, message)])

    one = launch("--port", "{port}")
    one.wait_for("ready at")
    first = leave(0)
    wait_until(lambda: not first.exists(), 30, "taken in")
    second = leave(1)
    one.process.send_signal(signal.SIGTERM)
    assert one.process.wait(30) == 0, one.said()
    assert not second.exists()
    with Memory(memory) as taken:
        assert UserMemory(taken, "").counts()["message"] == 2


def test_tools_are_given_to_the_page_with_the_settings_that_start_them(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "llama-run.toml").write_text('[tools]\nroot = "work"\n')
    one = launch("--port", "{port}", "--with-tools")
    one.wait_for("try: ")
    config = tmp_path / "memory" / f"mcp-servers-{one.port}.json"  # another server has another folder
    assert config.stat().st_mode & 0o777 == 0o600
    entry = json.loads(config.read_text())["mcpServers"]["llama-run"]
    assert f"--mcp-servers-config {config}" in (tmp_path / "logs" / f"server-{one.port}.log").read_text()
    assert f"files below {tmp_path / 'work'}" in one.said()
    assert "has no tools" not in one.said()
    listed = subprocess.run(
        [entry["command"], *entry["args"], "list"],
        env={**os.environ, "LLAMA_RUN_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "read_file" in listed.stdout and "search_memory" in listed.stdout


def test_a_server_that_got_no_tools_in_time_is_not_silent_about_it(launch: Launch) -> None:
    one = launch("--port", "{port}", "--with-tools", "--", "--without-tools")
    one.wait_for("has no tools")
    assert one.process.poll() is None


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--host", "0.0.0.0"], "other machines could use the tools"),
        (["--", "--host", "192.168.1.2"], "other machines could use the tools"),
        (["--", "--cors-origins", "https://example.org"], "pages of other sites could use the tools"),
    ],
)
def test_tools_are_for_this_machine_alone(launch: Launch, arguments: list[str], why: str) -> None:
    one = launch("--port", "{port}", "--with-tools", *arguments)
    assert one.process.wait(60) == 1
    assert why in one.said()
