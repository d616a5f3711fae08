"""`llama-run service` with a real systemd, which runs in namespaces of its own: its unit, crashes, and a reboot."""

from __future__ import annotations

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
from helpers import ROOT, free_port, only_server, wait_until
from stores import make_built_clone

from pyrun.service.unit import NAME
from toys.corpus import TEXT

pytestmark = pytest.mark.server

SYSTEMD = Path("/lib/systemd/systemd")
# A manager wants a machine that systemd has booted, and a part of the cgroup tree of its own.
BOOT = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system "$XDG_RUNTIME_DIR"
chmod 700 "$XDG_RUNTIME_DIR"
umount -l /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
mkdir /sys/fs/cgroup/llama-run-test-$1
echo $$ > /sys/fs/cgroup/llama-run-test-$1/cgroup.procs
unshare --cgroup /lib/systemd/systemd --user --log-target=console & # A user's manager is not the first process.
wait $!
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
        self.log = home / "manager.log"
        self._unshare: subprocess.Popen[bytes] | None = None

    def boot(self) -> None:
        namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        name = f"{os.getpid()}-{free_port()}"
        with self.log.open("ab") as log:
            self._unshare = subprocess.Popen(
                [*namespaces, "sh", "-c", BOOT, "sh", name], env=self.environment, stdout=log, stderr=log
            )
        wait_until(self._is_up_or_gone, 20, "systemd has started")

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
        assert self._unshare is not None
        ours = psutil.Process(self._unshare.pid).children(recursive=True)
        return next((process for process in ours if process.name() == "systemd"), None)

    def __call__(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        systemd = self._systemd()
        assert systemd is not None
        enter = ["nsenter", "--target", str(systemd.pid), "--mount", "--pid", "--cgroup", "--wdns=/"]
        return subprocess.run([*enter, *words], env=self.environment, capture_output=True, text=True, timeout=60)

    def shows(self, what: str) -> str:
        return self("systemctl", "--user", "show", "--value", "--property", what, NAME).stdout.strip()

    def launcher(self) -> int:
        """Its pid as it is seen from here."""
        assert self._unshare is not None
        ours = psutil.Process(self._unshare.pid).children(recursive=True)
        (server,) = [process for process in ours if process.name() == "llama-server"]
        return server.ppid()

    def shut_down(self) -> None:
        """As a shutdown does: units are stopped, each with its own time for it."""
        systemd = self._systemd() if self.is_up else None
        if self._unshare is not None and systemd is not None:
            systemd.terminate()
            self._unshare.wait(60)


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
        manager.boot()
        try:
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
    if ROOT.is_relative_to("/tmp"):
        lines.append("PrivateTmp=no")
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
        except requests.ConnectionError:
            return False

    def ask() -> dict[str, Any]:
        wait_until(is_ready, 60, f"the server answers: {manager('journalctl', '--user', '-n', '30').stdout}")
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

    os.kill(only_server(manager.launcher()), signal.SIGKILL)
    wait_until(lambda: not is_ready(), 10, "the server is gone")
    is_reused("the launcher has started another server")
    assert manager.shows("NRestarts") == "0"

    os.kill(manager.launcher(), signal.SIGKILL)
    wait_until(lambda: manager.shows("NRestarts") == "1", 30, "systemd has started another launcher")
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
