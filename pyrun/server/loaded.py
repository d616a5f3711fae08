"""Looks which of several models are loaded, and notes which stored state is whose when one is."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from pyrun.cache.owners import remember
from pyrun.errors import UserError
from pyrun.server.ask import ask
from pyrun.server.router import Preset

LOOK_SECONDS = 2.0


class LoadedModels:
    """A thread of its own, from the first `ready` to `stop`. A model that nobody asks for is never loaded by it."""

    def __init__(self, url: str, key: str | None, presets: Sequence[Preset]) -> None:
        self._url = url
        self._key = key
        self._files = {preset.name: preset.model for preset in presets}
        self._noted: set[str] = set()
        self._ending = threading.Event()
        self._started = False
        self._thread = threading.Thread(target=self._run, name="loaded", daemon=True)

    def ready(self) -> None:
        if not self._started and not self._ending.is_set():
            self._started = True
            self._thread.start()

    def stop(self) -> None:
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(10)

    def names(self) -> list[str]:
        """One that sleeps is not among them: it has written everything, and asking would wake it up."""
        listed = ask(self._url, "/v1/models", self._key, verify=False)["data"]
        return [str(one["id"]) for one in listed if one["status"]["value"] == "loaded"]

    def _run(self) -> None:
        while not self._ending.wait(LOOK_SECONDS):
            try:
                loaded = set(self.names())
            except UserError:
                continue
            self._noted &= loaded  # One that is loaded again may keep its state elsewhere.
            for name in loaded & self._files.keys() - self._noted:
                if self._note(name):
                    self._noted.add(name)

    def _note(self, name: str) -> bool:
        try:
            told = ask(self._url, "/cache", self._key, model=name, verify=False)
            if told["enabled"]:
                remember(Path(told["path"]), self._files[name], str(told["fingerprint"]))
        except (UserError, LookupError, TypeError):
            return False  # It may have gone in the meantime.
        return True
