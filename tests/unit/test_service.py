"""A server without a terminal: the unit for systemd, and processes in the background."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from fakes.models import gguf_bytes
from helpers import free_port, is_running, wait_until
from stores import make_clone, run

from pyrun.cli.background import own_command
from pyrun.errors import UserError
from pyrun.service import background
from pyrun.service.unit import NAME, quoted, unit

ASLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = make_clone(tmp_path)
    monkeypatch.setenv("LLAMA_RUN_HOME", str(root))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return root


def test_words_reach_systemd_as_they_are() -> None:
    assert quoted('/home/jö/a b%h$HOME"\\', argument=True) == '"/home/jö/a b%%h$$HOME\\"\\\\"'
    assert quoted("X=$1") == '"X=$1"'


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_unit_is_what_systemd_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "a folder $x %h ö" / "llama-run"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (tmp_path / NAME).write_text(unit([str(program), "--server=a b"], [tmp_path / "a b"], {"LLAMA_RUN_HOME": "/a b%"}))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    found = subprocess.run(["systemd-analyze", "--user", "verify", tmp_path / NAME], capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (0, "")


def test_unit_waits_for_saving_and_leaves_the_card_usable() -> None:
    text = unit(["/x/llama-run", "--server"], [Path("/state")], {})
    assert "TimeoutStopSec=150" in text and "KillMode=mixed" in text, "as long as the launcher itself waits"
    assert 'ReadWritePaths="-/state"' in text
    # The manager of an ordinary user starts no unit that has one of these: it may not drop capabilities.
    assert not any(name in text for name in ("CapabilityBoundingSet", "ProtectKernelModules", "ProtectKernelLogs"))
    # Before a large restore the cache asks what is in memory, by a call that few other programs need.
    assert "SystemCallFilter=@system-service mincore" in text and "SystemCallErrorNumber=EPERM" in text
    assert "PrivateDevices" not in text and "ProtectClock" not in text and "MemoryDenyWriteExecute" not in text


def test_service_without_systemd_is_explained_and_only_our_unit_is_removed(
    clone: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyrun.cli.service.shutil.which", lambda name: None)
    path = clone / "config" / "systemd" / "user" / NAME
    (clone / "models").mkdir()
    (clone / "models" / "qwen.gguf").write_bytes(gguf_bytes())
    code, _, err = run(capsys, "service", "install", "qwen")
    assert code == 1 and "use `llama-run start` instead" in err and '"--server=qwen"' in path.read_text()
    assert run(capsys, "service", "remove")[0] == 0 and not path.exists()
    assert "no service is installed" in run(capsys, "service", "status")[2]
    path.write_text("[Service]\n")
    for command in ("install", "remove"):
        code, _, err = run(capsys, "service", command)
        assert code == 1 and "is not one that llama-run wrote" in err and path.read_text() == "[Service]\n"


def put_systemctl(clone: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """One that succeeds, but for a case of sh."""
    programs = clone / "programs"
    programs.mkdir()
    systemctl = programs / "systemctl"
    systemctl.write_text(f'#!/bin/sh\ncase "$*" in {case} ;; esac\n')
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")


def test_service_that_does_not_start_is_not_called_a_systemd_that_does_not_answer(
    clone: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put_systemctl(clone, monkeypatch, '*restart*) echo "Job failed" >&2; exit 1')
    code, _, err = run(capsys, "service", "install")
    assert code == 1 and "Job failed\nerror: the service does not start" in err and "journalctl --user -u" in err


def test_one_server_for_each_port_found_again_and_stopped(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    started = background.start(ASLEEP, logs, 21150, "http://127.0.0.1:21150")
    try:
        assert background.find(logs, 21150) == started and background.find_all(logs) == [started]
        with pytest.raises(UserError, match="a server runs at http://127.0.0.1:21150 already"):
            background.start(ASLEEP, logs, 21150, "http://127.0.0.1:21150")
        assert (logs / "started-21150.json").stat().st_mode & 0o777 == 0o600
    finally:
        background.stop(logs, started)
    assert not is_running(started.pid) and background.find_all(logs) == []


def test_clock_may_be_set_while_a_server_runs(tmp_path: Path) -> None:
    """The time that a process began is told by a clock that was wrong then, or is now."""
    started = background.start(ASLEEP, tmp_path, 21153, "http://127.0.0.1:21153")
    file = tmp_path / "started-21153.json"
    content = json.loads(file.read_text())
    try:
        file.write_text(json.dumps(content | {"began": started.began - 3600}))
        found = background.find(tmp_path, 21153)
        assert found is not None and found.pid == started.pid
        file.write_text(json.dumps(content | {"mark": "another start of the machine 12"}))
        assert background.find(tmp_path, 21153) is None
    finally:
        file.write_text(json.dumps(content))
        background.stop(tmp_path, started)


def test_of_two_starts_at_once_one_finds_the_others_server(tmp_path: Path) -> None:
    def begin(_: int) -> background.Started | UserError:
        try:
            return background.start(ASLEEP, tmp_path, 21154, "http://127.0.0.1:21154")
        except UserError as error:
            return error

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(begin, range(8)))
    [started] = [one for one in outcomes if isinstance(one, background.Started)]
    assert background.find(tmp_path, 21154) == started
    background.stop(tmp_path, started)


def test_stopping_forgets_no_server_that_was_started_meanwhile(tmp_path: Path) -> None:
    first = background.start(ASLEEP, tmp_path, 21155, "http://127.0.0.1:21155")
    psutil.Process(first.pid).terminate()
    wait_until(lambda: first.process() is None, 20, "it has ended")
    second = background.start(ASLEEP, tmp_path, 21155, "http://127.0.0.1:21155")
    try:
        background.stop(tmp_path, first)  # it was waiting for the first one to end
        assert background.find(tmp_path, 21155) == second
    finally:
        background.stop(tmp_path, second)


def test_server_that_was_killed_is_not_found(tmp_path: Path) -> None:
    started = background.start(ASLEEP, tmp_path, 21151, "http://127.0.0.1:21151")
    psutil.Process(started.pid).kill()
    wait_until(lambda: background.find(tmp_path, 21151) is None, 20, "it is gone")


@pytest.mark.parametrize("change", [{"began": 1.0}, {"pid": "x"}, {"more": 1}])
def test_process_that_has_the_number_now_is_left_alone(tmp_path: Path, change: dict[str, object]) -> None:
    """As after a reboot, or where somebody has edited the file."""
    other = subprocess.Popen(ASLEEP)
    try:
        started = background.start(ASLEEP, tmp_path, 21152, "http://127.0.0.1:21152")
        background.stop(tmp_path, started)
        file = tmp_path / "started-21152.json"
        content = {"port": 21152, "began": psutil.Process(other.pid).create_time(), "pid": other.pid}
        rest = {"url": "u", "log": "l", "server_log": "s"}
        file.write_text(json.dumps(content | rest))
        assert background.find(tmp_path, 21152), "it would be taken for ours"
        file.write_text(json.dumps(content | rest | change))
        assert background.find(tmp_path, 21152) is None and background.find_all(tmp_path) == []
        assert is_running(other.pid)
    finally:
        other.kill()
        other.wait()


def test_server_that_does_not_start_says_why(
    clone: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = [sys.executable, "-c", "import sys; sys.exit('no such model')"]
    monkeypatch.setattr("pyrun.cli.background.own_command", lambda: refusing)
    code, _, err = run(capsys, "start", "--port", str(free_port()))
    assert code == 1 and "the server did not start:\n  no such model" in err
    code, _, err = run(capsys, "stop")
    assert code == 1 and "no server that `llama-run start` started runs" in err
    assert json.loads(run(capsys, "status", "--json")[1]) == []


def test_port_that_somebody_has_is_not_taken_for_the_server(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, err = run(capsys, "start", "--port", str(port))
    assert code == 1 and f"port {port} is in use by pid {os.getpid()}" in err
    assert background.find_all(clone / "logs") == []


def test_several_models_run_without_a_terminal(
    clone: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    printing = [sys.executable, "-c", "import sys; sys.exit(' '.join(sys.argv[1:]))"]
    monkeypatch.setattr("pyrun.cli.background.own_command", lambda: printing)
    assert "--server --all" in run(capsys, "start", "--all", "--port", str(free_port()))[2]
    (clone / "models").mkdir()
    for name in ("a", "b"):
        (clone / "models" / f"{name}.gguf").write_bytes(gguf_bytes())
    assert "--server=a,b" in run(capsys, "start", "a,b", "--port", str(free_port()))[2]
    assert '"--server" "--all"' in run(capsys, "service", "install", "--all", "--print")[1]
    for words in ("start --all a", "service install --all a"):
        assert run(capsys, *words.split())[0] == 2


def test_service_may_write_to_every_folder_that_is_set(
    clone: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (clone / "llama-run.toml").write_text(
        "[server]\ncache-ssd = 'one'\ncache-ssd-shared = '/two'\n[models.a]\ncache-ssd = 'three'\n"
        "[models.b]\narguments = ['--cache-ssd', '/four']\n"
    )
    monkeypatch.setenv("LLAMA_ARG_CACHE_SSD", "/of/this/shell/alone")
    text = run(capsys, "service", "install", "--print")[1]
    for folder in (clone / "one", "/two", clone / "three", "/four"):
        assert f'ReadWritePaths="-{folder}"' in text


def test_service_that_ends_at_once_is_not_called_started(
    clone: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put_systemctl(clone, monkeypatch, "*is-active*) exit 3")
    code, _, err = run(capsys, "service", "install")
    assert code == 1 and "the service was started, and has ended" in err and "journalctl --user -u" in err


def test_package_runs_what_is_installed_whatever_lies_in_the_current_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyrun.cli.background.is_clone", lambda: False)
    assert own_command() == [str(Path(sys.executable).with_name("llama-run"))]


def test_server_in_the_background_listens_where_its_model_s_settings_say(
    clone: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    printing = [sys.executable, "-c", "import sys; sys.exit(' '.join(sys.argv[1:]))"]
    monkeypatch.setattr("pyrun.cli.background.own_command", lambda: printing)
    (clone / "models").mkdir()
    (clone / "models" / "one.gguf").write_bytes(gguf_bytes())
    port = free_port()
    (clone / "llama-run.toml").write_text(f"[server]\nport = 1\n[models.one]\nport = {port}\n")
    for words in ("start", "start on"):  # the only one is meant where none is named
        assert f"-- --host 127.0.0.1 --port {port}\n" in run(capsys, *words.split())[2]
    assert "no model is called 'two'" in run(capsys, "start", "two")[2]
    typed = free_port()
    assert f"--port {typed}\n" in run(capsys, "start", "--port", str(typed))[2]
    (clone / "llama-run.toml").write_text(
        f"[server]\narguments = ['--port', '{port}']\n[models.one]\narguments = ['--host', '127.0.0.2']\n"
    )
    assert f"-- --temp 0 --host 127.0.0.2 --port {port}\n" in run(capsys, "start", "--", "--temp", "0")[2]


def test_service_names_what_it_serves_so_that_it_is_found_from_anywhere(
    clone: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(clone)
    (clone / "one.gguf").write_bytes(gguf_bytes())
    for name in ("./one.gguf", "one.gguf"):
        assert f'"--server={clone}/one.gguf"' in run(capsys, "service", "install", name, "--print")[1]
    (clone / "models").mkdir()
    (clone / "models" / "three.gguf").symlink_to(clone / "one.gguf")
    for name, found in (("three", "three"), ("models/three.gguf", f"{clone}/models/three.gguf")):
        assert f'"--server={found}"' in run(capsys, "service", "install", name, "--print")[1]
    (clone / "llama-run.toml").write_text("[models]\none = 3\n")
    assert "[models.one] is no table" in run(capsys, "service", "install", "--print")[2]
    (clone / "llama-run.toml").unlink()
    assert "no model is called 'two'" in run(capsys, "service", "install", "two", "--print")[2]
