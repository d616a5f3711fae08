"""The launcher and the real server: what is served, what happens when one of them dies."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
import requests
from fakes.models import gguf_bytes
from helpers import ROOT, is_running, wait_until
from server_fixtures import Server, StartServer

from pyrun.home import Home, version
from pyrun.upstream.pin import read_pin

pytestmark = pytest.mark.server


def test_server_says_which_llama_run_it_is(default_server: Server) -> None:
    pin = read_pin(Home(ROOT).pin)
    props = requests.get(f"{default_server.url}/props", timeout=10).json()
    assert props["llama_run"] == {"version": version(), "pin": pin.commit}
    binary = Home(ROOT).server_binary("cpu")
    printed = subprocess.run([binary, "--version"], capture_output=True, text=True)
    assert f"llama-run: {version()} (llama.cpp {pin.commit})" in printed.stderr
    assert f"commit {pin.short_commit}" in printed.stderr


def test_browser_gets_a_page(default_server: Server) -> None:
    page = requests.get(default_server.url, timeout=10)
    assert page.status_code == 200 and "<html" in page.text


def test_own_page_is_served(start_server: StartServer) -> None:
    server = start_server(None, "--", "--path", str(ROOT / "pyrun" / "web"))
    page = requests.get(server.url, timeout=10)
    assert page.status_code == 200 and "<title>llama-run</title>" in page.text


def test_default_listens_on_this_machine_alone(default_server: Server) -> None:
    addresses = {c.laddr.ip for c in psutil.Process(default_server.pid).net_connections() if c.status == "LISTEN"}
    assert addresses == {"127.0.0.1"}


def test_knowledge_survives_the_build(default_server: Server) -> None:
    """A wrong kernel gives fluent nonsense; the next word here is one that even a small model knows."""
    body = {"prompt": "The capital of France is", "n_predict": 1, "temperature": 0}
    assert default_server.post("/completion", body).json()["content"] == " Paris"


def test_ctrl_c_leaves_no_process(start_server: StartServer) -> None:
    server = start_server()
    pid = server.pid
    assert server.stop() == 0
    assert not is_running(pid) and "stopped" in server.said()


def test_sigterm_leaves_no_process(start_server: StartServer) -> None:
    server = start_server()
    pid = server.pid
    server.launcher.terminate()
    assert server.launcher.wait(30) == 0 and not is_running(pid)


def test_killed_server_comes_back(start_server: StartServer) -> None:
    server = start_server()
    first = server.pid
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: "killed by SIGKILL; starting again" in server.said(), 30, "it is noticed")
    server.wait_until_healthy()
    assert server.pid != first


def test_killed_launcher_takes_its_server_along(start_server: StartServer) -> None:
    server = start_server()
    pid = server.pid
    server.launcher.kill()
    server.launcher.wait()
    wait_until(lambda: not is_running(pid), 60, "the server is gone")


def test_busy_port_is_not_fought_over(default_server: Server) -> None:
    second = subprocess.run(
        [str(ROOT / "llama-run"), "--server", "--no-build", "--port", str(default_server.port)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert second.returncode == 1
    assert f"port {default_server.port} is in use by pid {default_server.pid} (llama-server)" in second.stderr
    assert default_server.is_healthy()


def test_wrong_server_flag_is_tried_once(start_server: StartServer) -> None:
    started = time.monotonic()
    server = start_server(None, "--", "--no-such-flag", ready=False)
    assert server.launcher.wait(60) == 1
    assert "llama-server did not start (exit code 1)" in server.said() and "--no-such-flag" in server.said()
    assert time.monotonic() - started < 30


def test_model_that_the_server_refuses_is_explained(start_server: StartServer, tmp_path: Path) -> None:
    """A file that is whole and says nonsense: we cannot know, the server does."""
    (tmp_path / "odd.gguf").write_bytes(gguf_bytes({"general.architecture": "abacus"}))
    server = start_server(tmp_path / "odd.gguf", ready=False)
    assert server.launcher.wait(60) == 1
    assert "llama-server did not start" in server.said() and "odd.gguf" in server.said()
