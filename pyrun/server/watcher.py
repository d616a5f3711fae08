"""What goes on beside a running server, from when it first answers until it ends."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod

STOP_SECONDS = 10.0  # a daemon: what takes longer ends with the process


class Watcher(ABC):
    """A thread of its own, from the first `ready` to `stop`."""

    def __init__(self, name: str) -> None:
        self._ending = threading.Event()
        self._started = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def ready(self) -> None:
        """The server answers, maybe after a crash."""
        if not self._started and not self._ending.is_set():
            self._started = True
            self._thread.start()

    def stop(self) -> None:
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)

    @abstractmethod
    def _run(self) -> None:
        """Until `self._ending` is set."""
