"""Tells a running server what the machine's power does: before a suspend everything is written, and while the battery
is low nothing is. And how worn the disk is that it writes to."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pyrun.errors import UserError
from pyrun.power.disk import Wear, read_wear
from pyrun.power.sleep import Sleep, listen
from pyrun.power.supply import SUPPLIES, Power, read_power
from pyrun.server.ask import ask
from pyrun.server.watcher import Watcher

LOOK_SECONDS = 30.0  # so often the battery is looked at
WEAR_SECONDS = 3600.0  # so often the disk is asked
NOTHING: tuple[Power, Wear | None] = (Power(mains=True), None)  # what everybody takes for granted
WAIT_SECONDS = 0.5  # so long an end may take to be noticed


class PowerWatch(Watcher):
    """Where nothing can be learnt, it says nothing."""

    def __init__(
        self,
        url: str,
        key: str | None,
        say: Callable[[str], None],
        cache: Path | None = None,
        supplies: Path = SUPPLIES,
        look: float = LOOK_SECONDS,
        loaded: Callable[[], Sequence[str | None]] = lambda: [None],
    ) -> None:
        """`loaded` gives the names of those of several models that have state to write, as `ask` takes them."""
        super().__init__("power")
        self._url = url
        self._key = key
        self._say = say
        self._cache = cache
        self._supplies = supplies
        self._look = look
        self._loaded = loaded
        self._told = NOTHING
        self._wear: Wear | None = None
        self._next_wear = 0.0
        self._held = False

    def ready(self) -> None:
        """The server answers, maybe after a crash: it has been told nothing."""
        self._told = NOTHING
        super().ready()

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
        troubles: list[str] = []
        try:
            for model in self._loaded():
                troubles += self._trouble_with_flushing(model)
        except UserError as error:
            troubles.append(error.message)
        if troubles:
            self._say(f"before the suspend, not everything was written: {'; '.join(troubles)}")
            return
        self._say(f"everything was written before the suspend, in {time.monotonic() - started:.1f} s")

    def _trouble_with_flushing(self, model: str | None) -> list[str]:
        """Those of one model keep no other from being written."""
        try:
            ask(self._url, "/cache/flush", self._key, model=model, post={}, verify=False)
        except UserError as error:
            return [error.message]
        return []

    def _tell_power(self) -> None:
        power = read_power(self._supplies)
        if self._cache is not None and time.monotonic() >= self._next_wear:
            self._next_wear = time.monotonic() + WEAR_SECONDS
            # The programs that know may take long, and a suspend does not wait: it is told at the next look.
            threading.Thread(target=self._learn_wear, args=(self._cache,), name="wear", daemon=True).start()
        with contextlib.suppress(UserError):  # they are told the next time, when the server answers
            loaded = self._loaded()
            held = [self._tell(model, power, self._wear) for model in loaded]
            if True in held and not self._held:
                self._say(f"the battery is at {power.battery} %: nothing is written before mains, a suspend or the end")
            self._held = True in held or (self._held and None in held)

    def _tell(self, model: str | None, power: Power, wear: Wear | None) -> bool | None:
        """Whether the model holds back what it would write; None where it need not be told, or does not answer."""
        now = (power, wear)
        # One of several models may have been loaded anew since, and knows nothing.
        if now == (self._told if model is None else NOTHING):
            return None  # A machine without a battery has nothing to tell, but of its disk.
        try:
            body = power.body() | (wear.body() if wear else {})
            told = ask(self._url, "/cache/power", self._key, model=model, post=body, verify=False)
        except UserError:
            return None
        self._told = now
        return bool(told.get("power", {}).get("writes_held"))

    def _learn_wear(self, cache: Path) -> None:
        self._wear = read_wear(cache)
