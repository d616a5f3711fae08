"""Suspend and battery, from a real message bus to the real server: logind and the battery are stand-ins."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cache_server import Serve, say, toy
from helpers import wait_until

from pyrun.errors import UserError
from pyrun.power.disk import Wear
from pyrun.power.sleep import LOGIN, MANAGER, PATH
from pyrun.power.supply import Power, read_power
from pyrun.power.watch import PowerWatch

jeepney = pytest.importorskip("jeepney")

CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>unix:path={socket}</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/>
<allow own="*"/><allow user="*"/></policy></busconfig>
"""


class Login:
    """What of logind the launcher uses: it hands out delays, and waits for them before it says that it suspends."""

    def __init__(self, address: str) -> None:
        from jeepney.io.blocking import open_dbus_connection

        self.connection = open_dbus_connection(address, enable_fds=True, auth_timeout=20)
        self.connection.send_and_get_reply(jeepney.message_bus.RequestName(LOGIN), timeout=10)
        self.delays: list[socket.socket] = []
        self.asked: list[tuple[str, ...]] = []
        self.ending = threading.Event()
        self.lock = threading.Lock()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        while not self.ending.is_set():
            try:
                message = self.connection.receive(timeout=0.2)
            except TimeoutError:
                continue
            fields = message.header.fields
            if fields.get(jeepney.HeaderFields.member) != "Inhibit":
                continue
            ours, theirs = socket.socketpair()
            self.asked.append(message.body)
            with self.lock:
                self.connection.send(jeepney.new_method_return(message, "h", (theirs,)))
            theirs.close()
            self.delays.append(ours)

    def prepare_for_sleep(self, begins: bool) -> None:
        emitter = jeepney.DBusAddress(PATH, bus_name=LOGIN, interface=MANAGER)
        with self.lock:
            self.connection.send(jeepney.new_signal(emitter, "PrepareForSleep", "b", (begins,)))

    def is_delayed(self) -> bool:
        """Whether somebody still holds the last delay that was handed out."""
        self.delays[-1].settimeout(0.05)
        try:
            return self.delays[-1].recv(1) != b""
        except TimeoutError:
            return True

    def close(self) -> None:
        self.ending.set()
        self.thread.join()
        self.connection.close()
        for delay in self.delays:
            delay.close()


@pytest.fixture
def login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Login]:
    where = tmp_path / "bus"
    config = tmp_path / "bus.conf"
    config.write_text(CONFIG.format(socket=where))
    try:
        daemon = subprocess.Popen(["dbus-daemon", f"--config-file={config}", "--nofork"])
    except FileNotFoundError:
        pytest.skip("there is no dbus-daemon here")
    try:
        wait_until(where.exists, 20, "the bus")
        address = f"unix:path={where}"
        monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", address)
        made = Login(address)
        yield made
        made.close()
    finally:
        daemon.terminate()
        daemon.wait()


def battery(folder: Path, percent: int, discharging: bool) -> None:
    for name, values in {
        "AC": {"type": "Mains", "online": "0" if discharging else "1"},
        "BAT0": {"type": "Battery", "capacity": str(percent), "status": "Discharging" if discharging else "Charging"},
        "mouse": {"type": "Battery", "scope": "Device", "capacity": "3", "status": "Discharging"},
    }.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for file, value in values.items():
            (folder / name / file).write_text(value + "\n")


def test_the_machines_own_battery_counts(tmp_path: Path) -> None:
    assert read_power(tmp_path) == Power(mains=True, battery=None)
    battery(tmp_path, 12, discharging=True)
    assert read_power(tmp_path) == Power(mains=False, battery=12)
    battery(tmp_path, 13, discharging=False)
    assert read_power(tmp_path) == Power(mains=True, battery=13)


@contextmanager
def power_listener() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A stand-in for the server: where it is, and what it is told about the power. Of several models, `broken` does
    not answer, and `off` has nothing to write."""
    told: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            told.append(body if "model=" not in self.path else {**body, "path": self.path})
            self.send_response(500 if "model=broken" in self.path else 200)
            self.end_headers()
            self.wfile.write(b"{}" if "model=off" in self.path else b'{"power": {"writes_held": true}}')

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", told
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_without_a_bus_the_battery_is_watched_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={tmp_path / 'none'}")
    said: list[str] = []
    with power_listener() as (url, told):
        battery(tmp_path, 12, discharging=True)
        watch = PowerWatch(url, None, said.append, supplies=tmp_path, look=0.1)
        watch.ready()
        wait_until(lambda: bool(said), 20, "told that it is low")
        watch.stop()
        assert [one["battery"] for one in told] == [12]
    assert len(said) == 1 and "12 %" in said[0]
    assert "power" not in {thread.name for thread in threading.enumerate()}, "it ends when it is told to"


def test_every_model_that_is_loaded_is_told_and_written_whatever_the_others_do(tmp_path: Path, login: Login) -> None:
    said: list[str] = []
    loaded = ["on", "broken", "off"]

    def names() -> list[str]:
        if not loaded:
            raise UserError("nobody knows what is loaded")
        return loaded

    def flushes() -> list[str]:
        return [one["path"] for one in told if "flush" in one["path"]]

    with power_listener() as (url, told):
        battery(tmp_path, 12, discharging=True)
        watch = PowerWatch(url, None, said.append, supplies=tmp_path, look=0.1, loaded=names)
        watch.ready()
        try:
            wait_until(lambda: len([one for one in told if "broken" in one["path"]]) > 2, 20, "asked again and again")
            assert len([one for one in told if "model=on" in one["path"]]) > 1, "it may have been loaded anew"
            assert len(said) == 1 and "12 %" in said[0], "it is said once, though one has nothing to hold back"
            wait_until(lambda: len(login.delays) == 1, 20, "a delay")
            login.prepare_for_sleep(True)
            wait_until(lambda: not login.is_delayed(), 20, "the delay is given back")
            assert flushes() == [f"/cache/flush?model={name}" for name in ("on", "broken", "off")]
            assert said[1].startswith("before the suspend, not everything was written: ")
            login.prepare_for_sleep(False)
            wait_until(lambda: len(login.delays) == 2, 20, "a new delay")
            loaded.clear()
            login.prepare_for_sleep(True)
            wait_until(lambda: not login.is_delayed(), 20, "the delay is given back")
            assert said[2] == "before the suspend, not everything was written: nobody knows what is loaded"
        finally:
            watch.stop()


def test_a_disk_that_is_slow_to_say_how_worn_it_is_delays_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={tmp_path / 'none'}")
    answers = threading.Event()
    worn = Wear(written=512_000, rated=5_120_000)

    def slow(_folder: Path) -> Wear:
        answers.wait()
        return worn

    monkeypatch.setattr("pyrun.power.watch.read_wear", slow)
    with power_listener() as (url, told):
        battery(tmp_path, 12, discharging=True)
        watch = PowerWatch(url, None, lambda _text: None, cache=tmp_path, supplies=tmp_path, look=0.1)
        watch.ready()
        try:
            wait_until(lambda: bool(told), 20, "told of the battery while the disk is asked")
        finally:
            answers.set()
        wait_until(lambda: len(told) == 2, 20, "told of the disk")
        watch.stop()
    assert "disk_written" not in told[0] and told[1] == told[0] | worn.body()


@pytest.mark.server
def test_before_a_suspend_all_is_written_and_on_a_low_battery_nothing(
    serve: Serve, kv: Path, tmp_path: Path, login: Login
) -> None:
    supplies = tmp_path / "power_supply"
    battery(supplies, 80, discharging=True)
    server = serve(toy("dense"), "--parallel", "2", "--ctx-size", "2048", cache=kv)
    said: list[str] = []
    watch = PowerWatch(server.url, None, said.append, supplies=supplies, look=0.2)
    watch.ready()

    def power() -> dict[str, Any]:
        return dict(server.cache()["power"])

    def written() -> int:
        return int(server.cache()["counters"]["checkpoints_written"])

    def ask(words: str) -> None:
        server.chat([say("user", words * 20)])

    try:
        wait_until(lambda: power()["battery"] == 80, 20, "told of the battery")
        wait_until(lambda: len(login.delays) == 1, 20, "a delay")
        assert login.asked[0][0] == "sleep" and login.asked[0][3] == "delay" and login.is_delayed()
        ask("one ")
        wait_until(lambda: written() == 1, 20, "written at once")

        battery(supplies, 12, discharging=True)
        wait_until(lambda: power()["writes_held"], 20, "told that it is low")
        ask("two ")
        ask("three ")
        assert written() == 1 and server.cache()["state"]["queued"] > 0
        assert any("12 %" in line for line in said)

        login.prepare_for_sleep(True)
        wait_until(lambda: not login.is_delayed(), 20, "the delay is given back")
        assert written() == 3 and server.cache()["state"]["queued"] == 0
        login.prepare_for_sleep(False)
        wait_until(lambda: len(login.delays) == 2, 20, "a new delay")
        assert login.is_delayed()

        ask("four ")
        assert written() == 3
        battery(supplies, 12, discharging=False)
        wait_until(lambda: written() == 4, 20, "written on mains")
        battery(supplies, 11, discharging=True)
        wait_until(lambda: power()["writes_held"], 20, "low again")
        ask("five ")
    finally:
        watch.stop()
    assert not login.is_delayed()
    server.stop()
    again = serve(toy("dense"), "--parallel", "2", "--ctx-size", "2048", cache=kv)
    assert again.cache()["state"]["checkpoints"] == 5, "what was held is written at the end"
