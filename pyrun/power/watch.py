"""Tells a running server what the machine's power does: before a suspend everything is written, and while the battery
is low nothing is."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pyrun.errors import UserError
from pyrun.power.sleep import Sleep, listen
from pyrun.power.supply import SUPPLIES, Power, read_power
from pyrun.server.ask import ask

LOOK_SECONDS = 30.0  # so often the battery is looked at
WAIT_SECONDS = 0.5  # so long an end may take to be noticed


class PowerWatch:
    """A thread of its own, from the first `ready` to `stop`. Where nothing can be learnt, it says nothing."""

    def __init__(
        self,
        url: str,
        key: str | None,
        say: Callable[[str], None],
        supplies: Path = SUPPLIES,
        look: float = LOOK_SECONDS,
    ) -> None:
        self._url = url
        self._key = key
        self._say = say
        self._supplies = supplies
        self._look = look
        self._ending = threading.Event()
        self._told: Power | None = None
        self._held = False
        self._started = False
        self._thread = threading.Thread(target=self._run, name="power", daemon=True)

    def ready(self) -> None:
        """The server answers, maybe after a crash: it has been told nothing."""
        self._told = None
        if not self._started and not self._ending.is_set():
            self._started = True
            self._thread.start()

    def stop(self) -> None:
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(10)

    def _run(self) -> None:
        next_look = 0.0
        with listen() as sleep:
            inhibited = False
            while not self._ending.is_set():
                if time.monotonic() >= next_look:
                    next_look = time.monotonic() + self._look
                    self._tell_power()
                if sleep is None:
                    self._ending.wait(WAIT_SECONDS)
                    continue
                try:
                    if not inhibited:
                        sleep.inhibit()
                        inhibited = True
                    self._hear(sleep)
                except Exception:  # the bus has gone or says what nobody understands: the battery is watched on
                    with contextlib.suppress(Exception):
                        sleep.close()  # it must not delay a suspend that nobody hears of
                    sleep = None

    def _hear(self, sleep: Sleep) -> None:
        suspends = sleep.wait(WAIT_SECONDS)
        if suspends:
            self._flush()
            sleep.let_go()
        elif suspends is False:
            sleep.inhibit()

    def _flush(self) -> None:
        started = time.monotonic()
        try:
            ask(self._url, "/cache/flush", self._key, post={}, verify=False)
        except UserError as error:
            self._say(f"before the suspend, not everything was written: {error.message}")
            return
        self._say(f"everything was written before the suspend, in {time.monotonic() - started:.1f} s")

    def _tell_power(self) -> None:
        power = read_power(self._supplies)
        if power == self._told or (self._told is None and power == Power(mains=True)):
            return  # A machine without a battery has nothing to tell.
        with contextlib.suppress(UserError):  # it is told the next time, when it answers
            told = ask(self._url, "/cache/power", self._key, post=power.body(), verify=False)
            self._told = power
            held = bool(told.get("power", {}).get("writes_held"))
            if held and not self._held:
                self._say(f"the battery is at {power.battery} %: nothing is written before mains, a suspend or the end")
            self._held = held
