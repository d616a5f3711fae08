"""Finds the models that a cache folder holds, and opens one of them; what can go wrong here has a remedy."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

import psutil

from pyrun import _kernels
from pyrun.cache.owners import owners
from pyrun.errors import UserError
from pyrun.extras import has_native
from pyrun.home import version

T = TypeVar("T")


@dataclass(frozen=True)
class Quarantined:
    """What a store has set aside because it is damaged."""

    files: int
    bytes: int


@dataclass(frozen=True)
class Model:
    """The stored state of one model, and of everything that shapes its state."""

    cache: Path
    fingerprint: bytes

    @property
    def name(self) -> str:
        return self.fingerprint.hex()

    @property
    def path(self) -> Path:
        return self.cache / self.name

    @property
    def owner(self) -> str | None:
        """The name of the model's file, where a server has told it."""
        return owners(self.cache).get(self.name)

    def quarantined(self) -> Quarantined:
        aside = self.path / _kernels.QUARANTINE
        if not aside.is_dir():
            return Quarantined(0, 0)
        size = _kernels.measure_tree(str(aside))
        return Quarantined(sum(1 for _ in aside.iterdir()), size)


@dataclass(frozen=True)
class Held:
    """A model that another process has open."""

    fingerprint: str
    pid: int | None
    process: str


class HeldError(UserError):
    def __init__(self, model: Model, held: Held) -> None:
        who = f"{held.process} (pid {held.pid})" if held.pid is not None else held.process
        if held.process == "llama-server":
            hint = "stop that server first; the other commands of `llama-run cache` ask it, once it is ready"
        else:
            hint = "wait until it ends, or stop it"
        super().__init__(f"{model.path} is in use by {who}", hint)
        self.held = held


@dataclass(frozen=True)
class Refusal:
    """Why something was not done, and what to do about it. It kept nothing else from being done."""

    message: str
    hint: str | None

    @classmethod
    def of(cls, error: UserError) -> Refusal:
        return cls(error.message, error.hint)


@dataclass(frozen=True)
class Visited(Generic[T]):
    """One result per model, but for those that another process has, and for those that refused."""

    cache: str
    models: list[T]
    held: list[Held]
    refused: list[Refusal] = field(default_factory=list)


def bytes_on_disk(path: Path) -> int:
    """Counts as a server does for its budget, or, without the native module or the right to read all of it, as `du`
    does."""
    if has_native():
        with suppress(_kernels.StoreError):
            return _kernels.measure_tree(str(path))
    total = 0
    for folder, _, files in os.walk(path):  # a server may remove what it no longer needs, also folders, meanwhile
        for one in (Path(folder), *(Path(folder, name) for name in files)):
            with suppress(FileNotFoundError):
                total += one.lstat().st_blocks * 512
    return total


def make_cache(cache: Path) -> None:
    """Makes the folder for its owner alone, and says why where a server could not keep state in it."""
    hint = "choose another folder with --cache-ssd DIR, or serve without: --no-cache-ssd"
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        entries = sorted(cache.iterdir())
    except (FileExistsError, NotADirectoryError) as error:
        raise UserError(f"{cache} cannot hold the cache: it is not a folder", hint) from error
    except OSError as error:
        raise UserError(f"{cache} cannot hold the cache: {error.strerror}", hint) from error
    if not _may_write(cache):
        why = "it is on a read-only disk" if _is_read_only(cache) else "no permission to write there"
        raise UserError(f"{cache} cannot hold the cache: {why}", hint)
    if has_native() and (name := _foreign(cache, entries)):
        raise UserError(
            f"{cache} cannot hold the cache: it holds other things, such as {name}",
            f"give it a folder of its own: --cache-ssd {cache / 'kv-cache'}",
        )


def find_models(cache: Path, prefix: str | None = None) -> list[Model]:
    """Finds the models in a cache folder. It makes nothing.

    `prefix` chooses among them: by the start of a fingerprint, or by a part of a name.
    """
    try:
        entries = sorted(cache.iterdir())
    except FileNotFoundError as error:
        raise UserError(
            f"there is no folder {cache}", "a server with --cache-ssd makes it; give the one it uses with --cache-ssd"
        ) from error
    except NotADirectoryError as error:
        raise UserError(f"{cache} is not a folder", "give the cache folder itself") from error
    except OSError as error:
        raise UserError(
            f"cannot read {cache}: {error.strerror}", "run as the user whose server writes there"
        ) from error
    _check_is_cache(cache, entries)
    models = [Model(cache, fingerprint) for fingerprint in _kernels.list_models(str(cache))]
    if prefix is None:
        return models
    wanted, named = prefix.lower(), owners(cache)
    chosen = [m for m in models if m.name.startswith(wanted) or wanted in named.get(m.name, "").lower()]
    if not chosen:
        names = "".join(f"\n  {model.name} {named.get(model.name, '')}".rstrip() for model in models) or " none"
        raise UserError(
            f"no model in {cache} has {prefix!r} in its name or begins so; these are there:{names}",
            "`llama-run cache ls` shows what is stored",
        )
    return chosen


def _check_is_cache(cache: Path, entries: list[Path]) -> None:
    if name := _foreign(cache, entries):
        raise UserError(
            f"{cache} is not a cache of llama-run: it holds {name}, and no stored state",
            "give the folder that the server was started with: --cache-ssd DIR",
        )


def _foreign(cache: Path, entries: list[Path]) -> str | None:
    """Names something that somebody else's folder holds. Such a folder is not opened, not even to look: what is not
    ours would be taken for damage."""
    others = [e.name for e in entries if e.name not in ("README.md", "lost+found") and not e.name.startswith(".")]
    if not others:
        return None
    with suppress(OSError):
        if "llama-run" in (cache / _kernels.TAG_FILE).read_text(encoding="utf-8", errors="replace"):
            return None
    # A cut-off start may have left none; then the locks of those models tell that can be read.
    for name in filter(_kernels.is_fingerprint, others):
        with suppress(OSError):
            if (cache / name / _kernels.LOCK_FILE).is_file():
                return None
    return others[0]


@contextmanager
def opened(model: Model, *, change: bool = False) -> Iterator[_kernels.Store]:
    """Opens the store of a model, locked against other processes. Without `change`, nothing on disk is touched.

    Limits are not applied: what a server may keep is for its own settings to say.
    """
    if change:
        check_writable(model.path)
    with (
        explaining(model),
        _kernels.Store(str(model.cache), model.fingerprint, inspect=not change, written_by=version()) as store,
    ):
        yield store


@contextmanager
def explaining(model: Model) -> Iterator[None]:
    """What the store says of a model gets a remedy."""
    try:
        yield
    except _kernels.StoreError as error:
        raise _explained(model, error) from error


def _explained(model: Model, error: _kernels.StoreError) -> UserError:
    if isinstance(error, _kernels.StoreBusyError):
        return HeldError(model, Held(model.name, error.pid, _process_name(error.pid)))
    hints = {
        "miss": "it may have been removed just now; `llama-run cache ls` shows what is stored",
        "no_space": "free some space on that disk, then run this again",
        "exhausted": "close some programs, then run this again",
        "io_error": "check the disk and who owns the folder; nothing that was sound is lost",
    }
    return UserError(error.message, hints.get(error.kind))


def check_writable(path: Path) -> None:
    if _may_write(path):
        return
    if _is_read_only(path):
        raise UserError(f"{path} is on a read-only disk: nothing can be removed", "mount it writable first")
    raise UserError(f"no permission to change {path}", "run as the user whose server writes there")


def _may_write(path: Path) -> bool:
    return os.access(path, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids)


def _is_read_only(path: Path) -> bool:
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def _process_name(pid: int | None) -> str:
    try:
        return psutil.Process(pid).name() if pid is not None else "another process"
    except psutil.Error:
        return "another process"


def visit(cache: Path, prefix: str | None, look: Callable[[Model], T]) -> Visited[T]:
    """Does the same for every model. One that is in use or refuses does not keep the others from being looked at."""
    found: Visited[T] = Visited(str(cache), [], [])
    for model in find_models(cache, prefix):
        try:
            with explaining(model):
                found.models.append(look(model))
        except HeldError as error:
            found.held.append(error.held)
        except UserError as error:
            found.refused.append(Refusal.of(error))
    return found
