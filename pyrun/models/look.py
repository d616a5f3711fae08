"""Reads models: GGUF heads of whole sets, with one clear message for each way a set can be broken."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pyrun.errors import UserError
from pyrun.home import Home
from pyrun.models.facts import ModelFacts, model_facts
from pyrun.models.find import Model, list_companions, list_models
from pyrun.models.gguf import BrokenModelError, read_gguf


class CompanionError(BrokenModelError):
    """A file that goes with a model, such as a projector for images, and was taken for one."""


@dataclass(frozen=True)
class Seen:
    """A model in models/: what it is, or why it cannot be loaded."""

    model: Model
    facts: ModelFacts | None
    problem: UserError | None = None


def look(model: Model) -> ModelFacts:
    """Reads a whole set, and raises UserError for one that no server can load."""
    model.check_complete()
    facts = model_facts(model.name, [read_gguf(part) for part in model.parts])
    if facts.is_companion:
        raise CompanionError(
            model.path, f"is a companion of a model ({facts.architecture}), not a model", "give the model itself"
        )
    return facts


def see(model: Model) -> Seen:
    try:
        return Seen(model, look(model))
    except UserError as error:
        return Seen(model, None, error)


def see_models(home: Home) -> list[Seen]:
    """All in models/ are read at once: on a slow disk they wait for it together."""
    models = list_models(home)
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(see, models))


def companions(home: Home, seen: list[Seen]) -> list[Path]:
    """Some are known by their names, and files with other names say that they are."""
    named = list_companions(home)
    told = [s.model.path for s in seen if isinstance(s.problem, CompanionError)]
    return sorted([*named, *told])
