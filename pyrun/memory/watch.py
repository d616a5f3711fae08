"""Takes the spool in while a server fills it: a thread of the launcher's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from pyrun.errors import UserError
from pyrun.memory.intake import take_in
from pyrun.memory.spool import SPOOL, files_in, folders
from pyrun.memory.store import Memory

LOOK_SECONDS = 5.0


class SpoolWatch:
    """While it is entered, what is left in the spool goes into the memory; at the end, all that lies there."""

    def __init__(self, folder: Path, limit: int, complain: Callable[[str], None], every: float = LOOK_SECONDS) -> None:
        """`complain` is told what is wrong with the memory, once for each kind of trouble, from the thread."""
        self._folder = folder
        self._limit = limit
        self._complain = complain
        self._every = every
        self._trouble = ""
        self._pruning = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spool", daemon=True)

    def __enter__(self) -> SpoolWatch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            ended = self._ended.wait(self._every)
            self._look()
            if ended:
                return

    def _is_something_there(self) -> bool:
        """A folder that cannot be read may have something: the intake says what is wrong with it."""
        for folder in folders(self._folder / SPOOL):
            try:
                if files_in(folder):
                    return True
            except OSError:
                return True
        return False

    def _look(self) -> None:
        """Opens the memory only when there is something for it: most servers never drop a message."""
        trouble = ""
        try:
            if self._pruning or self._is_something_there():
                with Memory(self._folder, self._limit) as memory:
                    trouble = take_in(memory).trouble
                    self._pruning = memory.prune()
        except (UserError, OSError) as error:
            trouble = str(error)
        if trouble and trouble != self._trouble:
            self._trouble = trouble
            self._complain(f"the memory cannot take in what left a chat: {trouble}")
