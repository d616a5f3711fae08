"""Finds the GGUF file that a user means by a path, a name or a part of a name."""

from __future__ import annotations

import contextlib
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from pyrun.errors import UserError
from pyrun.home import BundledHome, Home
from pyrun.models.quants import quant_of

PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)


@dataclass(frozen=True)
class Model:
    """One model: a GGUF file, or the parts of a split set."""

    path: Path  # the first part is the file to load
    name: str
    size: int  # all parts together have it
    parts: tuple[Path, ...] = ()  # those that are there
    missing: tuple[str, ...] = ()  # the names of those that are not

    def check_complete(self) -> None:
        if self.missing:
            first = PART.search(self.missing[0])
            which = f"part {int(first[1])} of {int(first[2])}" if first and len(self.missing) == 1 else "parts"
            raise UserError(
                f"{self.name} is incomplete; missing {which} in {self.path.parent}: {', '.join(self.missing)}",
                "download the missing parts, or move the others away",
            )


def list_models(home: Home) -> list[Model]:
    """Lists the models in models/, with split sets once, companions left out, and built-in ones last. A bundle has
    those in a folder of its own."""
    models: dict[Path, Model] = {}
    folders = [home.models] if home.default_models.is_relative_to(home.models) else [home.models, home.default_models]
    for path in sorted(path for folder in folders for path in folder.rglob("*.gguf")):
        if path.is_file() and not is_companion(path.name):
            model = _model(path)
            models[model.path] = model
    return sorted(models.values(), key=lambda model: model.path.is_relative_to(home.default_models))


def list_companions(home: Home) -> list[Path]:
    return [path for path in sorted(home.models.rglob("*.gguf")) if path.is_file() and is_companion(path.name)]


def is_companion(name: str) -> bool:
    """A projector for images (mmproj) or the statistics of a quantisation (imatrix): GGUF, but no model."""
    lower = name.lower()
    return "mmproj" in lower or ("imatrix" in lower and not quant_of(name))


def find_model(home: Home, wanted: str) -> Model:
    """Finds it by path, by exact name (with or without `.gguf`), or by a part of a name that only one model has."""
    model = _find(home, wanted)
    model.check_complete()
    return model


def _find(home: Home, wanted: str) -> Model:
    if (exact := _find_exact(home, wanted)) is not None:
        return exact
    models = list_models(home)
    partial = [m for m in models if wanted.lower() in m.name.lower()]
    if len(partial) == 1:
        return partial[0]
    if partial:
        raise UserError(
            f"{wanted!r} could be any of these models:\n{_as_list(partial)}",
            "give enough of the name to mean one",
        )
    if (path := _path(wanted)) is not None and path.is_dir():
        raise UserError(f"{path} is a folder", "give the GGUF file in it")
    if wanted.endswith(".gguf") and Path(wanted).parent != Path():
        raise UserError(f"there is no file {wanted}", "check the path")
    if not models:
        raise UserError(
            f"no model is called {wanted!r}, and {home.models} is empty",
            f"{how_to_get_one(home, wanted)}; without a name the built-in default is served",
        )
    raise UserError(f"no model is called {wanted!r}; these are here:\n{_as_list(models)}", how_to_get_one(home, wanted))


def _find_exact(home: Home, wanted: str) -> Model | None:
    path = _path(wanted)
    if path is not None and path.is_file():
        return _model(_named(path))
    return next((m for m in list_models(home) if wanted in (m.name, m.path.name)), None)


def _path(wanted: str) -> Path | None:
    """If something is there. A text may be too long for a path, or name nobody's home."""
    with contextlib.suppress(OSError, RuntimeError):
        path = Path(wanted).expanduser()
        return path if path.exists() else None
    return None


def _named(path: Path) -> Path:
    """A link keeps its own name, because a hub's cache calls the files themselves after their hashes; only one that
    leads to a part is followed, to where the other parts are."""
    target = path.resolve()
    return target if PART.search(target.name) else path.parent.resolve() / path.name


def names_in(home: Home, wanted: str) -> list[str]:
    """Several may be named, with commas between; a model whose name has one is meant whole."""
    if _find_exact(home, wanted) is not None:
        return [wanted]
    return [name.strip() for name in wanted.split(",") if name.strip()]


def how_to_get_one(home: Home, name: str = "") -> str:
    """A bundle is for machines without network: it downloads nothing."""
    if isinstance(home, BundledHome):
        return f"put its GGUF file into {home.models}"
    return f"to get {'it' if name else 'one'}: llama-run --download {shlex.quote(name) if name else 'OWNER/REPO'}"


def _model(path: Path) -> Model:
    part = PART.search(path.name)
    if part is None:
        return Model(path, path.name.removesuffix(".gguf"), path.stat().st_size, (path,))
    prefix = path.name[: part.start()]
    count = int(part.group(2))
    parts = [path.with_name(f"{prefix}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]
    there = tuple(p for p in parts if p.is_file())
    missing = tuple(p.name for p in parts if p not in there)
    return Model(parts[0], prefix, sum(p.stat().st_size for p in there), there, missing)


def _as_list(models: list[Model]) -> str:
    return "\n".join(f"  {m.name}  ({m.size / 1e9:.2f} GB)" for m in models)
