"""Is the one owner of llama-server's life: starts it, waits for health, restarts it after a crash, stops it.

It signals only the process it started itself. The policy of restarts is in restart.py; what is shown is the
caller's, through the Listener. Now and then it looks into the log for what a person should hear.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Protocol

from pyrun.errors import UserError
from pyrun.server.ask import direct
from pyrun.server.log import Follower, open_log
from pyrun.server.restart import GiveUp, after_crash
from pyrun.server.stop import LONGEST_SECONDS, MENTION_SECONDS, QUIET_SECONDS, Writing, is_overdue
from pyrun.server.words import without_secrets

POLL_SECONDS = 0.1
LOOK_SECONDS = 5.0  # so long it waits between two looks into the log
ASK_SECONDS = 2.0  # so long it waits before it asks again for what is missing
LOST_WORKER = 75  # the server ends with it, as kernels/server/lost_worker.h says, and will find the worker again
# A wrapper that passes Ctrl-C on sends it twice, within milliseconds; a person who means it takes longer.
TWICE_SECONDS = 0.1
SHOWN_LINES = 20

_PR_SET_PDEATHSIG = 1


class State(enum.Enum):
    STARTING = "starting"  # the process runs, and is not healthy yet
    READY = "ready"  # it answers requests
    BACKOFF = "backoff"  # it crashed, and waits to start again
    WAITING = "waiting"  # it waits for what it needs to start, which the detail names
    STOPPING = "stopping"  # the signal is sent, and the end is waited for
    SAVING = "saving"  # the end is still waited for, because it writes to disk
    STOPPED = "stopped"  # it ended as asked; the detail says what did not


class Listener(Protocol):
    def __call__(self, state: State, detail: str) -> None: ...


@dataclass(frozen=True)
class Watched:
    """What is supervised."""

    command: Sequence[str]
    health_url: str
    log: Path
    stop_seconds: float = QUIET_SECONDS  # so long it may go without writing
    longest_stop_seconds: float = LONGEST_SECONDS
    name: str = "llama-server"
    is_ready: Callable[[], bool] | None = None  # it is asked where health_url is none
    missing: Callable[[], str] = lambda: ""  # says what must be there before it is started; empty: nothing is missing


class Supervisor:
    """Runs in the main thread; `stop` and `interrupt` may be called from a signal handler or another thread."""

    def __init__(self, watched: Watched, listener: Listener, hear: Callable[[str], None] = lambda notice: None) -> None:
        """`hear` is given the lines of the log that a person should see."""
        self._watched = watched
        self._listener = listener
        self._hear = hear
        # They are plain values: an Event takes a lock, and a signal handler that wants it while wait() has it hangs.
        self._asked: float | None = None  # when the end was asked for
        self._hurried = False
        self._end = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._crashes: list[float] = []
        self._was_ready = False
        self._failed_starts = 0  # in a row
        self._follower: Follower | None = None
        self._next_look = 0.0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def stop(self) -> None:
        if self._asked is None:
            self._asked = time.monotonic()

    def interrupt(self) -> None:
        """Ctrl-C: the first one asks the server to end, the next kills it."""
        if self._asked is not None and time.monotonic() - self._asked >= TWICE_SECONDS:
            self._hurried = True
        self.stop()

    def run(self) -> None:
        """Returns when the server was stopped on request; raises UserError when it cannot be kept running."""
        try:
            while self._asked is None and self._has_all():
                self._start()
                code = self._watch()
                if code is None:
                    break
                self._after_exit(code)
        finally:
            self._shut_down()
        self._tell(State.STOPPED, self._end)

    def _tell(self, state: State, detail: str) -> None:
        """Tells the listener. Its terminal may be gone and its disk full: that is no reason to stop a server."""
        with contextlib.suppress(OSError):
            self._listener(state, detail)

    def _has_all(self) -> bool:
        """Returns when nothing is missing; with False, when a stop is asked for."""
        told = ""
        while missing := self._watched.missing():
            if missing != told:
                self._tell(State.WAITING, missing)
                told = missing
            self._pause(ASK_SECONDS)
            if self._asked is not None:
                return False
        return True

    def _start(self) -> None:
        try:
            with open_log(self._watched.log) as log:
                line = f"\n$ {' '.join(without_secrets(self._watched.command))}\n"
                with contextlib.suppress(OSError):  # a full disk keeps a server that crashed from nothing else
                    os.write(log.fileno(), line.encode())
                self._follower = Follower(self._watched.log)
                self._process = subprocess.Popen(
                    list(self._watched.command),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    # A terminal's Ctrl-C must reach the server once, from us, not from the terminal as well.
                    start_new_session=True,
                    # SIGPIPE stays ignored, as it is here: a worker outlives the server that it is about to answer.
                    restore_signals=False,
                    preexec_fn=end_with_parent(os.getpid()),
                )
        except OSError as error:
            raise UserError(
                f"cannot start {self._watched.command[0]}: {error.strerror or error}",
                "`llama-run build` builds it anew",
            ) from error
        self._failed_starts += 1  # until it is ready
        self._tell(State.STARTING, f"pid {self._process.pid}")

    def _watch(self) -> int | None:
        """Returns when the process ends, with its code, or when a stop is asked for, with None."""
        assert self._process is not None
        ready = False
        while True:
            code = self._process.poll()
            if code is not None:
                return code
            if self._asked is not None:
                return None
            if not ready and self._is_healthy():
                ready = self._was_ready = True
                self._failed_starts = 0
                self._tell(State.READY, f"pid {self._process.pid}")
            if time.monotonic() >= self._next_look:
                self._look_into_log()
            time.sleep(POLL_SECONDS)

    def _look_into_log(self) -> None:
        self._next_look = time.monotonic() + LOOK_SECONDS
        if self._follower is not None:
            for notice in self._follower.notices():
                with contextlib.suppress(OSError):
                    self._hear(notice)

    def _is_healthy(self) -> bool:
        if self._watched.is_ready is not None:
            return self._watched.is_ready()
        import requests  # it takes long to load, and --dry-run asks nobody

        try:
            with direct() as session:
                return session.get(self._watched.health_url, timeout=2, verify=False).status_code == 200
        except requests.RequestException:
            return False

    def _after_exit(self, code: int) -> None:
        reason = _describe(code)
        if code == 0:
            raise UserError(
                f"{self._watched.name} ended by itself\n{self._log_tail()}", f"the full log is {self._watched.log}"
            )
        # A server that refuses its arguments or its model says so and exits; it would do the same again.
        if code > 0 and code != LOST_WORKER and not self._was_ready:
            raise UserError(
                f"{self._watched.name} did not start ({reason}):\n{self._log_tail()}",
                f"the full log is {self._watched.log}",
            )
        now = time.monotonic()
        self._crashes.append(now)
        decision = after_crash(self._crashes, now, self._failed_starts if code != LOST_WORKER else 0)
        if isinstance(decision, GiveUp):
            memory = "the system ends so what fills its memory: a smaller model or --ctx takes less; "
            raise UserError(
                f"{self._watched.name} {decision.why}, at last {reason}:\n{self._log_tail()}",
                f"{memory if code == -signal.SIGKILL else ''}the full log is {self._watched.log}",
            )
        self._tell(State.BACKOFF, f"{reason}; starting again in {decision.delay:g} s")
        self._pause(decision.delay)

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while self._asked is None and time.monotonic() < end:
            time.sleep(min(POLL_SECONDS, seconds))

    def _shut_down(self) -> None:
        """Asks first, and kills only what does not listen."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        writing = Writing(process.pid)
        asked = last_write = time.monotonic()
        process.send_signal(signal.SIGTERM)
        self._tell(State.STOPPING, f"pid {process.pid}")
        mentioned = False
        while process.poll() is None:
            now = time.monotonic()
            if writing.is_seen():
                last_write = now
                if not mentioned and now - asked >= MENTION_SECONDS:
                    mentioned = True
                    self._tell(State.SAVING, f"pid {process.pid}")
            limits = (self._watched.stop_seconds, self._watched.longest_stop_seconds)
            if self._hurried or is_overdue(asked, last_write, now, *limits):
                self._end = f"killed after {now - asked:.0f} s"
                process.kill()
                process.wait()
            else:
                time.sleep(POLL_SECONDS)
        self._look_into_log()  # saving is when a full disk is met

    def _log_tail(self) -> str:
        text = ""
        with contextlib.suppress(OSError):
            text = self._watched.log.read_text(encoding="utf-8", errors="replace")
        return "\n".join("  " + line for line in text.splitlines()[-SHOWN_LINES:])


def stop_on_signals(supervisor: Supervisor) -> None:
    """Ctrl-C, a polite kill, a terminal that closes. What nohup runs outlives its terminal: SIGHUP is ignored there."""

    def stop(signum: int, frame: FrameType | None) -> None:
        if signum == signal.SIGINT:
            supervisor.interrupt()
        else:
            supervisor.stop()

    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signum != signal.SIGHUP or signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, stop)


def _describe(code: int) -> str:
    if code == LOST_WORKER:
        return "a worker that holds a part of the model was lost"
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def end_with_parent(parent: int) -> Callable[[], None] | None:
    """The kernel sends the child SIGTERM when its parent dies, even by kill -9. Only Linux does so."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)  # it is loaded here, as nothing may be loaded between fork and exec

    def in_child() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # the parent died in between
            os._exit(1)

    return in_child
