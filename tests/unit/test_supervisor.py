"""The supervisor against a server that misbehaves: real processes, real signals, real HTTP."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers import free_port, is_running, wait_until

from pyrun.errors import UserError
from pyrun.server import restart, supervisor
from pyrun.server.log import Follower, idle_logs, log_of
from pyrun.server.stop import is_overdue
from pyrun.server.supervisor import State, Supervisor, Watched, stop_on_signals

FAKE = Path(__file__).resolve().parents[1] / "fakes" / "fake_server.py"


class Run:
    """A supervisor in a thread, with what it reported. Death of the parent is tested with a process of its own."""

    def __init__(
        self,
        folder: Path,
        *flags: str,
        stop_seconds: float = 5.0,
        longest: float = 60.0,
        missing: Callable[[], str] = lambda: "",
    ) -> None:
        self.port = free_port()
        self.journal = folder / "journal"
        self.log = folder / "server.log"
        self.command = [sys.executable, str(FAKE), "--port", str(self.port), "--journal", str(self.journal), *flags]
        self.states: list[tuple[State, str]] = []
        self.error: UserError | None = None
        health = f"http://127.0.0.1:{self.port}/health"
        watched = Watched(self.command, health, self.log, stop_seconds, longest, missing=missing)
        self.heard: list[str] = []
        self.supervisor = Supervisor(
            watched, lambda state, detail: self.states.append((state, detail)), self.heard.append
        )
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.supervisor.run()
        except UserError as error:
            self.error = error

    def start(self) -> None:
        self.thread.start()

    def wait_for(self, state: State, times: int = 1) -> None:
        wait_until(lambda: [s for s, _ in self.states].count(state) >= times, 30, f"{state} x {times}")

    def stop(self) -> None:
        self.supervisor.stop()
        self.thread.join(30)
        assert not self.thread.is_alive()

    def pids(self) -> list[int]:
        return [int(line) for line in self.journal.read_text().split()] if self.journal.exists() else []


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    started: list[Run] = []

    def make(*flags: str, stop_seconds: float = 5.0, longest: float = 60.0) -> Run:
        started.append(Run(tmp_path, *flags, stop_seconds=stop_seconds, longest=longest))
        started[-1].start()
        return started[-1]

    yield make
    for one in started:
        one.stop()
        assert not any(is_running(pid) for pid in one.pids()), "a server was left behind"


def test_slow_start_is_not_called_ready(run: Callable[..., Run]) -> None:
    began = time.monotonic()
    one = run("--load-seconds", "1")
    one.wait_for(State.READY)
    assert time.monotonic() - began >= 1 and one.states[0][0] is State.STARTING
    assert "fake: listening" in one.log.read_text()


def test_proxy_is_not_asked_for_the_server(run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    run().wait_for(State.READY)


def test_stop_leaves_no_process(run: Callable[..., Run]) -> None:
    one = run()
    one.wait_for(State.READY)
    one.stop()
    assert [state for state, _ in one.states][-2:] == [State.STOPPING, State.STOPPED]
    assert one.error is None and not is_running(one.pids()[0])


def test_server_that_ignores_sigterm_is_killed(run: Callable[..., Run]) -> None:
    one = run("--ignore-sigterm", stop_seconds=0.5)
    one.wait_for(State.READY)
    one.stop()
    assert not is_running(one.pids()[0])
    assert one.states[-1][0] is State.STOPPED and one.states[-1][1].startswith("killed after")


@pytest.mark.parametrize("where", [(), ("--save-in-child",)], ids=["itself", "the process of one of several models"])
def test_server_is_not_killed_while_it_saves(run: Callable[..., Run], where: tuple[str, ...]) -> None:
    one = run("--save-seconds", "6", *where, stop_seconds=3.0)
    one.wait_for(State.READY)
    one.stop()
    assert [state for state, _ in one.states][-3:] == [State.STOPPING, State.SAVING, State.STOPPED]
    assert one.states[-1][1] == "", "it ended by itself"


def test_server_that_saves_for_ever_is_not_waited_for(run: Callable[..., Run]) -> None:
    one = run("--save-seconds", "1000", stop_seconds=60.0, longest=3.0)
    one.wait_for(State.READY)
    one.stop()
    state, detail = one.states[-1]
    assert state is State.STOPPED and detail.startswith("killed after ") and 3 <= int(detail.split()[2]) < 60


def test_second_ctrl_c_is_heard(run: Callable[..., Run]) -> None:
    one = run("--save-seconds", "1000")
    one.wait_for(State.READY)
    one.supervisor.interrupt()
    one.wait_for(State.STOPPING)
    time.sleep(0.3)  # as quickly as a person presses
    one.supervisor.interrupt()
    one.thread.join(20)
    assert not one.thread.is_alive() and one.states[-1][1].startswith("killed after")


def test_ctrl_c_that_a_wrapper_doubles_does_not_kill_at_once(
    run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "TWICE_SECONDS", 10.0)  # a busy machine may take long between the two
    one = run("--save-seconds", "1")
    one.wait_for(State.READY)
    one.supervisor.interrupt()
    one.supervisor.interrupt()
    one.thread.join(20)
    assert one.states[-1] == (State.STOPPED, ""), "it ended by itself"


def test_log_is_closed_to_others_and_does_not_hold_the_key(run: Callable[..., Run]) -> None:
    one = run("--api-key", "geheim")
    one.wait_for(State.READY)
    assert one.log.stat().st_mode & 0o777 == 0o600
    assert "--api-key ***" in one.log.read_text() and "geheim" not in one.log.read_text()


def test_log_that_cannot_be_written_is_not_blamed_on_the_build(run: Callable[..., Run], tmp_path: Path) -> None:
    (tmp_path / "server.log").mkdir()
    one = run()
    one.thread.join(20)
    assert one.error is not None and one.error.message == f"cannot write {one.log}: Is a directory"
    assert "build" not in (one.error.hint or "")


def test_log_in_use_looks_in_use(run: Callable[..., Run], tmp_path: Path) -> None:
    one = run()
    one.wait_for(State.READY)
    log = log_of(tmp_path, 1)
    log.symlink_to(one.log)
    assert idle_logs(tmp_path) == []
    one.stop()
    assert idle_logs(tmp_path) == [log]


def test_what_the_server_says_of_its_cache_is_heard(run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "LOOK_SECONDS", 0.1)
    lines = (
        "0.01.234.567 W cache: not storing (no_space): the disk is full",
        "0.01.234.568 I cache: slot 0: parted at token 7: W cache: not storing (no_space): my prompt",
        "\x1b[34m0.02.000.000\x1b[0m \x1b[35mW cache: storing again\x1b[0m",
    )
    one = run(*(word for line in lines for word in ("--say", line)))
    wait_until(lambda: len(one.heard) >= 2, 20, "both")
    assert one.heard == ["not storing (no_space): the disk is full", "storing again"]


@pytest.mark.parametrize(
    ("last_write", "now", "expected"),
    [
        (0.0, 29.0, False),  # a long batch
        (0.0, 30.0, True),
        (25.0, 50.0, False),  # it wrote not long ago
        (25.0, 55.0, True),
        (119.0, 119.5, False),
        (119.9, 120.0, True),  # whatever it does
    ],
)
def test_saving_is_overdue_when_nothing_is_written(last_write: float, now: float, expected: bool) -> None:
    assert is_overdue(0.0, last_write, now) is expected


def test_what_cannot_be_said_leaves_the_server_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "LOOK_SECONDS", 0.0)
    one = Run(tmp_path, "--say", "0.01 W cache: not storing (no_space): the disk is full", "--save-seconds", "0.5")

    def listen(state: State, detail: str) -> None:
        one.states.append((state, detail))
        raise OSError(errno.EIO, "the terminal is gone")

    def hear(notice: str) -> None:
        one.heard.append(notice)
        raise OSError(errno.ENOSPC, "the disk is full")

    watched = Watched(one.command, f"http://127.0.0.1:{one.port}/health", one.log)
    one.supervisor = Supervisor(watched, listen, hear)
    one.start()
    one.wait_for(State.READY)
    wait_until(lambda: bool(one.heard), 30, "it is heard")
    os.kill(one.pids()[0], signal.SIGKILL)
    one.wait_for(State.READY, 2)
    one.stop()
    assert one.states[-1] == (State.STOPPED, ""), "it ended by itself"


def test_server_starts_though_the_disk_of_its_log_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Run(tmp_path)
    one.log.touch()
    monkeypatch.setattr(supervisor, "open_log", lambda log: os.fdopen(os.open("/dev/full", os.O_WRONLY), "ab"))
    one.start()
    one.wait_for(State.READY)
    one.stop()
    assert one.error is None and one.states[-1] == (State.STOPPED, "")


def test_what_nohup_runs_outlives_its_terminal(tmp_path: Path) -> None:
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        for inherited in (signal.SIG_IGN, signal.SIG_DFL):
            signal.signal(signal.SIGHUP, inherited)
            stop_on_signals(Run(tmp_path).supervisor)
            assert (signal.getsignal(signal.SIGHUP) is signal.SIG_IGN) == (inherited is signal.SIG_IGN)
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


@pytest.mark.parametrize("text", ["", "cache: storing again\n"])
def test_log_that_was_emptied_is_followed(tmp_path: Path, text: str) -> None:
    log = tmp_path / "log"
    log.write_text("something that was said before the server started\n")
    follower = Follower(log)
    log.write_text(text)
    assert list(follower.notices()) == (["storing again"] if text else [])
    with log.open("a") as file:
        file.write("cache: not storing (no_space): the disk is full\n")
    assert list(follower.notices()) == ["not storing (no_space): the disk is full"]


def test_stop_during_the_start_does_not_hang(run: Callable[..., Run]) -> None:
    one = run("--load-seconds", "1000")
    one.wait_for(State.STARTING)
    one.stop()
    assert one.error is None


def test_killed_server_is_started_again(run: Callable[..., Run]) -> None:
    one = run()
    one.wait_for(State.READY)
    os.kill(one.pids()[0], signal.SIGKILL)
    one.wait_for(State.READY, times=2)
    assert (State.BACKOFF, "killed by SIGKILL; starting again in 0.5 s") in one.states
    assert len(one.pids()) == 2


def test_server_is_started_when_nothing_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "ASK_SECONDS", 0.05)
    lacking = ["a worker"]
    one = Run(tmp_path, missing=lambda: lacking[0] if lacking else "")
    one.start()
    one.wait_for(State.WAITING)
    assert one.states == [(State.WAITING, "a worker")] and not one.pids()
    lacking.clear()
    one.wait_for(State.READY)
    lacking.append("the other worker")
    os.kill(one.pids()[0], signal.SIGKILL)
    one.wait_for(State.WAITING, 2)
    one.stop()
    assert [detail for state, detail in one.states if state is State.WAITING] == ["a worker", "the other worker"]
    assert len(one.pids()) == 1 and one.states[-1] == (State.STOPPED, "")


def test_crashing_server_is_not_restarted_for_ever(run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restart, "FIRST_DELAY", 0.05)
    one = run("--crash-after", "0.8")  # it is ready by then
    one.thread.join(120)
    assert one.error is not None and "crashed 5 times in a minute, at last killed by SIGSEGV" in one.error.message
    assert "fake: listening" in one.error.message, "the end of the log is shown"
    assert len(one.pids()) == restart.MAX_CRASHES


def test_server_that_dies_while_it_loads_is_not_started_for_ever(
    run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a model does not fit: loading takes longer than five crashes may be apart."""
    monkeypatch.setattr(restart, "FIRST_DELAY", 0.05)
    monkeypatch.setattr(restart, "WINDOW_SECONDS", 0.01)
    one = run("--load-seconds", "60", "--crash-after", "0.1")
    one.thread.join(60)
    assert one.error is not None and "crashed 3 times before it was ready, at last killed by" in one.error.message
    assert len(one.pids()) == restart.MAX_FAILED_STARTS


def test_a_start_that_succeeds_makes_good_for_those_before(
    run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restart, "FIRST_DELAY", 0.05)
    monkeypatch.setattr(restart, "WINDOW_SECONDS", 0.01)
    one = run("--crash-after", "0.8")
    one.wait_for(State.READY, restart.MAX_FAILED_STARTS + 1)
    one.stop()
    assert one.error is None


def test_server_that_refuses_its_model_is_not_started_again(run: Callable[..., Run]) -> None:
    one = run("--exit-code", "1")
    one.thread.join(30)
    assert one.error is not None and "did not start (exit code 1)" in one.error.message
    assert "fake: cannot load the model" in one.error.message
    assert len(one.pids()) == 1


def test_missing_binary_is_an_error(tmp_path: Path) -> None:
    watched = Watched([str(tmp_path / "none")], "http://127.0.0.1:1/health", tmp_path / "log")
    with pytest.raises(UserError, match="cannot start .*none: No such file or directory"):
        Supervisor(watched, lambda state, detail: None).run()


def test_signal_at_a_bad_moment_does_not_hang_the_launcher(tmp_path: Path) -> None:
    """A signal handler runs between any two lines of the main thread, also while a lock is held inside a wait.

    So stop is called at every line in turn; a lock that it wants and the interrupted line holds is never given back.
    """
    script = textwrap.dedent(f"""
        import sys
        from pathlib import Path
        from pyrun.server import supervisor as module
        from pyrun.server.supervisor import Supervisor, Watched

        module.POLL_SECONDS = 0.001
        watched = Watched(["sleep", "100"], "http://127.0.0.1:1/health", Path({str(tmp_path / "log")!r}))

        class NeverReady(Supervisor):
            def _is_healthy(self):
                return False

        def run_and_stop_at(line):
            supervisor = NeverReady(watched, lambda state, detail: None)
            seen = 0
            def trace(frame, event, argument):
                nonlocal seen
                if frame.f_code.co_filename.endswith(("/threading.py", "/supervisor.py")):
                    seen += 1
                    if seen == line:
                        supervisor.stop()
                return trace
            sys.settrace(trace)
            try:
                supervisor.run()
            finally:
                sys.settrace(None)

        for line in range(1, 100):
            run_and_stop_at(line)
        print("never hung")
    """)
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert result.stdout == "never hung\n", result.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="the death signal is a feature of Linux")
def test_killed_launcher_takes_its_server_along(tmp_path: Path) -> None:
    journal, port = tmp_path / "journal", free_port()
    launcher = subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(f"""
                from pathlib import Path
                from pyrun.server.supervisor import Supervisor, Watched
                command = [{sys.executable!r}, {str(FAKE)!r}, "--port", "{port}", "--journal", {str(journal)!r}]
                watched = Watched(command, "http://127.0.0.1:{port}/health", Path({str(tmp_path / "log")!r}))
                Supervisor(watched, lambda state, detail: print(state.value, flush=True)).run()
            """),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert launcher.stdout is not None
    with launcher, launcher.stdout:
        assert [launcher.stdout.readline().strip() for _ in range(2)] == ["starting", "ready"]
        launcher.kill()
    server = int(journal.read_text())
    wait_until(lambda: not is_running(server), 20, "the server is gone")


@pytest.mark.parametrize(
    ("crashes", "now", "expected"),
    [
        ([10.0], 10.0, restart.Restart(0.5)),
        ([10.0, 12.0], 12.0, restart.Restart(1.0)),
        ([1.0, 2.0, 3.0, 4.0], 4.0, restart.Restart(4.0)),
        ([1.0, 2.0, 3.0, 4.0, 5.0], 5.0, restart.GiveUp("crashed 5 times in a minute")),
        ([1.0, 2.0, 3.0, 4.0, 70.0], 70.0, restart.Restart(0.5)),  # old crashes are forgiven
    ],
)
def test_restarts_follow_the_policy(crashes: list[float], now: float, expected: object) -> None:
    assert restart.after_crash(crashes, now) == expected
