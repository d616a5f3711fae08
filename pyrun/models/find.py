"""Which GGUF file a user means by a path, a name or a part of a name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pyrun.errors import UserError
from pyrun.home import Home
from pyrun.models.quants import quant_of

PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)


@dataclass(frozen=True)
class Model:
    """One model: a GGUF file, or the first part of a split set."""

    path: Path
    name: str
    size: int  # of all parts


def list_models(home: Home) -> list[Model]:
    """The models in models/, split sets once and companions (mmproj) left out; built-in ones last."""
    files = [path for path in sorted(home.models.rglob("*.gguf")) if path.is_file() and _is_first(path)]
    files.sort(key=lambda path: path.is_relative_to(home.default_models))
    return [_model(path) for path in files if not is_companion(path.name)]


def is_companion(name: str) -> bool:
    """A projector for images (mmproj) or the statistics of a quantisation (imatrix): GGUF, but no model."""
    lower = name.lower()
    return "mmproj" in lower or ("imatrix" in lower and not quant_of(name))


def find_model(home: Home, wanted: str) -> Model:
    """By path, by exact name (with or without `.gguf`), or by a part of a name that only one model has."""
    path = Path(wanted).expanduser()
    if path.is_file():
        return _model(path.resolve())
    models = list_models(home)
    exact = [m for m in models if wanted in (m.name, m.path.name)]
    if exact:
        return exact[0]
    partial = [m for m in models if wanted.lower() in m.name.lower()]
    if len(partial) == 1:
        return partial[0]
    if partial:
        raise UserError(
            f"{wanted!r} could be any of these models:\n{_as_list(partial)}",
            "give enough of the name to mean one",
        )
    if path.is_dir():
        raise UserError(f"{path} is a folder", "give the GGUF file in it")
    if wanted.endswith(".gguf") and path.parent != Path():
        raise UserError(f"there is no file {path}", "check the path")
    if not models:
        raise UserError(
            f"no model is called {wanted!r}, and {home.models} is empty",
            "`llama-run --download` gets one; or give a path, or leave the name out to use the built-in default",
        )
    raise UserError(f"no model is called {wanted!r}; these are here:\n{_as_list(models)}")


def _model(path: Path) -> Model:
    part = PART.search(path.name)
    if part is None:
        return Model(path, path.name.removesuffix(".gguf"), path.stat().st_size)
    prefix = path.name[: part.start()]
    count = int(part.group(2))
    parts = [path.with_name(f"{prefix}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]
    missing = [p.name for p in parts if not p.is_file()]
    if missing:
        raise UserError(
            f"{prefix} is incomplete; missing in {path.parent}: {', '.join(missing)}",
            "download the missing parts, or move the others away",
        )
    return Model(parts[0], prefix, sum(p.stat().st_size for p in parts))


def _is_first(path: Path) -> bool:
    part = PART.search(path.name)
    return part is None or int(part.group(1)) == 1


def _as_list(models: list[Model]) -> str:
    return "\n".join(f"  {m.name}  ({m.size / 1e9:.2f} GB)" for m in models)
