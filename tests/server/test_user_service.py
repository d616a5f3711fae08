"""`llama-run service` with a real systemd, which runs in namespaces of its own: its unit, crashes, and a reboot."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
from cache_server import smollm2
from helpers import ROOT, free_port, is_running, only_server, wait_until
from stores import make_built_clone

from pyrun.service.unit import NAME
from toys.corpus import TEXT

pytestmark = pytest.mark.server

SYSTEMD = Path("/lib/systemd/systemd")
# A manager wants a machine that systemd has booted, and a part of the tree of cgroups that is its own: it removes what
# is empty there. A user's manager is not the first process.
BOOT = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system /run/cgroup "$XDG_RUNTIME_DIR"
chmod 700 "$XDG_RUNTIME_DIR"
mount -t cgroup2 none /run/cgroup
mkdir "/run/cgroup/$1"
echo $$ > "/run/cgroup/$1/cgroup.procs"
umount /run/cgroup
umount -l /sys/fs/cgroup
exec unshare --cgroup sh -ec '
    mount -t cgroup2 none /sys/fs/cgroup
    /lib/systemd/systemd --user --log-target=console &
    wait $!'
"""
# What the manager leaves of its cgroups.
SWEEP = """
mount -t cgroup2 none "$2" && find "$2/$1" -depth -type d -exec rmdir {} +
"""


class Manager:
    """Systemd's manager of one user, who has `home` as home."""

    def __init__(self, home: Path, llama_run_home: Path) -> None:
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "XDG_CONFIG_HOME": str(home / "config"),
            "XDG_RUNTIME_DIR": "/run/user/0",
            "LLAMA_RUN_HOME": str(llama_run_home),
        }
        self.home = home
        self.log = home / "manager.log"
        self._cgroup = f"llama-run-test-{os.getpid()}"
        self._unshare: subprocess.Popen[bytes] | None = None

    def boot(self) -> None:
        """Everything ends with this process."""
        namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        command = ["setpriv", "--pdeathsig", "KILL", *namespaces, "sh", "-c", BOOT, "sh", self._cgroup]
        with self.log.open("ab") as log:
            self._unshare = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
        wait_until(self._is_up_or_gone, 60, "systemd has started")

    def _is_up_or_gone(self) -> bool:
        if not self.is_up:
            return True
        systemd = self._systemd()
        said = self("systemctl", "--user", "is-system-running") if systemd else None
        return said is not None and said.stdout.strip() in ("running", "degraded")

    @property
    def is_up(self) -> bool:
        return self._unshare is not None and self._unshare.poll() is None

    def _systemd(self) -> psutil.Process | None:
        return next(iter(self._named("systemd")), None)

    def _named(self, name: str) -> list[psutil.Process]:
        assert self._unshare is not None
        found = []
        for process in psutil.Process(self._unshare.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                found += [process] if process.name() == name else []
        return found

    def __call__(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        systemd = self._systemd()
        assert systemd is not None
        enter = ["nsenter", "--target", str(systemd.pid), "--mount", "--pid", "--cgroup", "--wdns=/"]
        return subprocess.run([*enter, *words], env=self.environment, capture_output=True, text=True, timeout=200)

    def shows(self, what: str) -> str:
        return self("systemctl", "--user", "show", "--value", "--property", what, NAME).stdout.strip()

    def launcher(self) -> int:
        """Its pid as it is seen from here."""
        (server,) = self._named("llama-server")
        return server.ppid()

    def shut_down(self) -> None:
        """As a shutdown does: units are stopped, each with its own time for it."""
        if self._unshare is None:
            return
        systemd = self._systemd() if self.is_up else None
        if systemd is not None:
            systemd.terminate()
        try:
            self._unshare.wait(200 if systemd else 1)
        except subprocess.TimeoutExpired:
            self._unshare.kill()
            self._unshare.wait()
        folder = self.home / "cgroup"
        folder.mkdir(exist_ok=True)
        subprocess.run(["unshare", "--mount", "sh", "-c", SWEEP, "sh", self._cgroup, folder], check=False)


@pytest.fixture
def manager() -> Iterator[Manager]:
    if os.geteuid() != 0 or not SYSTEMD.exists() or shutil.which("nsenter") is None:
        pytest.skip("needs root and systemd")
    # The unit has a /tmp of its own, where it would not find the clone.
    (ROOT / ".cache").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / ".cache") as folder:
        home = Path(folder)
        (home / "clone").mkdir()
        manager = Manager(home, make_built_clone(home / "clone"))
        try:
            manager.boot()
            if not manager.is_up:
                pytest.skip(f"systemd does not run here: {manager.log.read_text()[-300:]}")
            yield manager
        finally:
            manager.shut_down()


def loosen(manager: Manager) -> None:
    """What this machine has mounted may be more than systemd can protect, and then it starts nothing at all."""
    lines = []
    probe = ["systemd-run", "--user", "--wait", "--quiet"]
    for setting in ("ProtectKernelTunables", "ProtectControlGroups", "ProtectHostname"):
        if manager(*probe, f"--property={setting}=yes", "true").returncode != 0:
            lines.append(f"{setting}=no")
    if ROOT.is_relative_to("/tmp") or ROOT.is_relative_to("/var/tmp"):
        lines.append("PrivateTmp=no")
    lines.append(f"StandardError=append:{manager.home / 'server.log'}")
    folder = Path(manager.environment["XDG_CONFIG_HOME"]) / "systemd" / "user" / f"{NAME}.d"
    folder.mkdir(parents=True)
    (folder / "here.conf").write_text("\n".join(["[Service]", *lines, ""]))


def test_service_survives_crashes_and_reboots_with_its_prompts(manager: Manager) -> None:
    loosen(manager)
    port = free_port()
    clone = Path(manager.environment["LLAMA_RUN_HOME"])
    settings = f'[server]\nport = {port}\nno-build = true\nbackend = "cpu"\nctx = 2048\n'
    (clone / "llama-run.toml").write_text(settings + 'arguments = ["--threads", "1"]\n')
    prompt = " ".join((TEXT.split() * 3)[:400])

    def is_ready() -> bool:
        try:
            return requests.get(f"http://127.0.0.1:{port}/health", timeout=5).status_code == 200
        except requests.RequestException:
            return False

    def ask() -> dict[str, Any]:
        wait_until(is_ready, 120, f"the server answers: {manager.home / 'server.log'}")
        body = {"prompt": prompt, "n_predict": 4, "temperature": 0}
        answer = requests.post(f"http://127.0.0.1:{port}/completion", json=body, timeout=120).json()
        assert requests.post(f"http://127.0.0.1:{port}/cache/flush", timeout=60).status_code == 200
        return {"text": answer["content"], **answer["timings"]}

    installed = manager(ROOT / "llama-run", "service", "install", smollm2())
    assert installed.returncode == 0, installed.stderr
    first = ask()
    n_tokens = first["prompt_n"]
    assert first["cache_n"] == 0 and n_tokens > 400

    def is_reused(after: str) -> None:
        answer = ask()
        assert (answer["cache_n"], answer["text"]) == (n_tokens - 1, first["text"]), after

    killed = only_server(manager.launcher())
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: not is_running(killed), 10, "the server is gone")
    is_reused("the launcher has started another server")
    assert manager.shows("NRestarts") == "0"

    os.kill(manager.launcher(), signal.SIGKILL)
    wait_until(lambda: manager.shows("NRestarts") == "1", 60, "systemd has started another launcher")
    is_reused("systemd has started another launcher")

    manager.shut_down()
    assert not is_ready()
    manager.boot()
    assert manager("systemctl", "--user", "start", "default.target").returncode == 0
    is_reused("the machine was started anew")
    assert manager(ROOT / "llama-run", "service", "status").returncode == 0

    removed = manager(ROOT / "llama-run", "service", "remove")
    assert removed.returncode == 0, removed.stderr
    assert not is_ready() and manager.shows("LoadState") == "not-found"
