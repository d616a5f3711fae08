"""Chooses the model to serve: the one that is named, the only one there is, or the built-in one."""

from __future__ import annotations

import shlex
from pathlib import Path

from pyrun.errors import UserError
from pyrun.home import Home
from pyrun.models.default import DEFAULT_SIZE, default_model_path
from pyrun.models.find import Model, find_model, list_models
from pyrun.models.look import see


def choose_model(home: Home, wanted: str | None) -> Model:
    """The built-in default may not be there yet: it is fetched only when it is really started."""
    if wanted is not None:
        return find_model(home, wanted)
    models = [m for m in list_models(home) if not m.path.is_relative_to(home.default_models)]
    if len(models) > 1:
        raise _say_which(models)
    return models[0] if models else built_in(default_model_path(home))


def built_in(path: Path) -> Model:
    return Model(path, path.stem, DEFAULT_SIZE, (path,) if path.exists() else ())


def _say_which(models: list[Model]) -> UserError:
    seen = [see(model) for model in models]
    names = "\n".join(f"  {one.model.name}{'' if one.facts else ' (cannot be served)'}" for one in seen)
    whole = next((one.model.name for one in seen if one.facts), None)
    hint = f"llama-run --server {shlex.quote(whole)}" if whole else "`llama-run --list-models` says what is wrong"
    return UserError(f"there are several models; say which one to serve:\n{names}", hint)
