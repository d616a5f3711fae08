"""Looks which of several models are loaded, and notes which stored state is whose when one is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pyrun.cache.owners import remember
from pyrun.errors import UserError
from pyrun.server.ask import ask
from pyrun.server.router import Preset
from pyrun.server.watcher import Watcher

LOOK_SECONDS = 2.0


class LoadedModels(Watcher):
    """A model that nobody asks for is never loaded by it."""

    def __init__(self, url: str, key: str | None, presets: Sequence[Preset]) -> None:
        super().__init__("loaded")
        self._url = url
        self._key = key
        self._files = {preset.name: preset.model for preset in presets}
        self._noted: set[str] = set()

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
