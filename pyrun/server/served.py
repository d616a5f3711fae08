"""Finds the model of a running server that is meant. One that routes between several, as `llama-run --server --all`
does, has to be told with every question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyrun.errors import UserError
from pyrun.models.find import PART
from pyrun.server.ask import TIMEOUT_SECONDS, ask

LOADED = ("loaded", "sleeping")  # of upstream's states; one that sleeps wakes up when it is asked
CHOOSE = "choose one with --model"


@dataclass(frozen=True)
class Served:
    name: str
    is_routed: bool = False  # it is one of those behind an address, be they one or many
    is_loaded: bool = True

    @property
    def routed_name(self) -> str | None:
        """What `ask` is given as the model: where there is only one, nobody has to say which."""
        return self.name if self.is_routed else None


def choose_served(
    url: str, key: str | None, wanted: str | None = None, how: str = CHOOSE, *, verify: bool = True
) -> Served:
    """`wanted` is a name or a part of one that no other has, and may be left out where there is only one model. `how`
    says how a person names one."""
    return _choose(url, _list(url, key, verify), wanted, how)


def choose_loaded(url: str, key: str | None, wanted: str | None = None) -> Served:
    """Does so for questions about what a model is doing, for which none is loaded. `wanted` may be left out where only
    one is."""
    served = _list(url, key)
    if wanted is None:
        loaded = [one for one in served if one.is_loaded]
        if not loaded:
            raise UserError(f"{url} has loaded no model", f"a request loads the one that it names: {_names(served)}")
        return _choose(url, loaded, None, CHOOSE)
    found = _choose(url, served, wanted, CHOOSE)
    if not found.is_loaded:
        raise UserError(f"{url} has not loaded {found.name}", "a request that names it loads it")
    return found


def load(url: str, key: str | None, served: Served, *, verify: bool = True) -> Any:
    """Gives GET /props of it. A router loads it for that, however long it takes; its cache cannot be asked about
    before."""
    patience = None if served.is_routed else TIMEOUT_SECONDS
    return ask(url, "/props", key, model=served.routed_name, patience=patience, verify=verify)


def _list(url: str, key: str | None, verify: bool = True) -> list[Served]:
    told = ask(url, "/v1/models", key, verify=verify)
    entries: list[Any] = told["data"] if isinstance(told, dict) and isinstance(told.get("data"), list) else []
    if not entries:
        raise UserError(f"{url} serves no model", "start it with one: `llama-run --server MODEL`")
    states = [entry["status"]["value"] if "status" in entry else None for entry in entries]  # routers alone tell them
    is_routed = len(entries) > 1 or states[0] is not None
    return [
        Served(str(entry["id"]), is_routed, state is None or state in LOADED)
        for entry, state in zip(entries, states, strict=True)
    ]


def _choose(url: str, served: Sequence[Served], wanted: str | None, how: str) -> Served:
    meant = served if wanted is None else _meant(served, wanted)
    if len(meant) == 1:
        return meant[0]
    if meant:
        which = "several models" if wanted is None else f"several models that {wanted} may be"
        raise UserError(f"{url} serves {which}", f"{how}: {_names(meant)}")
    if not served[0].is_routed:
        raise UserError(f"{url} serves {served[0].name}, not {wanted}", "leave the model out, or choose another port")
    raise UserError(f"{url} does not serve {wanted}", f"{how}: {_names(served)}")


def _meant(served: Sequence[Served], wanted: str) -> list[Served]:
    """As for files: the whole name counts, or else a part of one. A file is known by its name, less its ending."""
    part = PART.sub("", Path(wanted).name).removesuffix(".gguf")
    exact = [one for one in served if one.name in (wanted, part)]
    return exact or [one for one in served if part.casefold() in one.name.casefold()]


def _names(served: Sequence[Served]) -> str:
    return ", ".join(one.name for one in served)
