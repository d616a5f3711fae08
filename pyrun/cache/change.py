"""Changes stored state: removes what is of no use, damaged or no longer wanted, and keeps what shall stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pyrun import _kernels
from pyrun.cache.folder import (
    HeldError,
    Model,
    Refusal,
    Visited,
    check_writable,
    explaining,
    find_models,
    opened,
    visit,
)
from pyrun.cache.look import (
    Conversation,
    Damage,
    Progress,
    Reading,
    conversation_of,
    damage_of,
    list_model,
    verify_store,
    whole_hash,
)
from pyrun.cache.remote import ask_as_owner, keep_one, list_server, open_model, remove_on_server
from pyrun.cache.running import Running, server_of
from pyrun.errors import UserError
from pyrun.server.ask import ask


@dataclass(frozen=True)
class Collected:
    fingerprint: str
    bytes_before: int
    bytes_after: int
    quarantine_bytes: int  # what is still there
    damaged: list[Damage]  # what was found now is set aside, and without --corrupt removed

    @property
    def bytes_freed(self) -> int:
        return self.bytes_before - self.bytes_after


@dataclass(frozen=True)
class Target:
    """Something to remove: one conversation, all of a user, or (with neither) all of a model."""

    model: Model
    conversations: list[Conversation]
    n_bytes: int
    hash: int | None = None
    name_space: bytes | None = None
    user: str = ""
    server: Running | None = None  # it has the model open, and removes it itself


@dataclass(frozen=True)
class Selected:
    """What is meant, and which models could not be asked for it."""

    targets: list[Target]
    refused: list[Refusal]


@dataclass(frozen=True)
class Removed:
    cache: str
    bytes_freed: int
    conversations: list[Conversation]
    logs: list[str]
    refused: list[Refusal]


def collect(cache: Path, prefix: str | None = None) -> Visited[Collected]:
    """Removes what nothing can use: unfinished files, pages without a beginning, and what was set aside."""

    def clean(model: Model) -> Collected:
        before = _kernels.measure_tree(str(model.path))
        with opened(model, change=True) as store:
            damaged = [damage_of(found) for found in store.damaged()]
            store.gc()
        return _collected(model, before, damaged)

    return visit(cache, prefix, clean)


def collect_through(url: str, key: str | None) -> Visited[Collected]:
    """Does as collect, for the one model that a server has open."""
    told, model = open_model(url, key)
    before = _kernels.measure_tree(str(model.path))
    ask_as_owner(model, "/cache/gc", post={})
    return Visited(told["path"], [_collected(model, before, [])], [])


def set_damaged_aside(cache: Path, prefix: str | None = None, progress: Progress | None = None) -> Visited[Collected]:
    """Reads every byte and moves the files that fail out of the way, with the checkpoints that cannot do without."""
    reading = Reading(find_models(cache, prefix), progress)

    def clean(model: Model) -> Collected:
        before = _kernels.measure_tree(str(model.path))
        with opened(model, change=True) as store:  # opening sets aside what it finds itself
            report = verify_store(model, store, reading.of(model))
            damaged = {found.path: found for found in report.damaged}
            if damaged:
                store.set_aside(list(damaged))
        with opened(model, change=True) as store:
            damaged |= {found.path: damage_of(found) for found in store.damaged()}
        return _collected(model, before, list(damaged.values()))

    return visit(cache, prefix, clean)


def _collected(model: Model, before: int, damaged: list[Damage]) -> Collected:
    return Collected(
        fingerprint=model.name,
        bytes_before=before,
        bytes_after=_kernels.measure_tree(str(model.path)),
        quarantine_bytes=model.quarantined().bytes,
        damaged=damaged,
    )


def select_conversations(cache: Path, hashes: Sequence[str], prefix: str | None = None) -> Selected:
    """Finds them by their hash or its first digits. The same prompt under several models or users means all of them."""
    stored: list[tuple[Model, Conversation, Running | None]] = []
    refused: list[Refusal] = []
    for model in find_models(cache, prefix):
        try:
            listed, server = _listed(model)
            stored += [(model, conversation, server) for conversation in listed]
        except UserError as error:
            refused.append(Refusal.of(error))
    chosen: dict[tuple[str, str | None, str], Target] = {}
    for wanted in hashes:
        name = whole_hash(wanted, [c.hash for _, c, _ in stored])
        if name is None and not refused:
            raise UserError(f"no conversation {wanted} is stored in {cache}", "`llama-run cache ls` shows them")
        for model, c, server in stored:
            if c.hash != name:
                continue
            name_space = bytes.fromhex(c.user) if c.user else _kernels.user_key("")
            key = (model.name, c.user, c.hash)
            chosen[key] = Target(model, [c], c.bytes_own, hash=int(c.hash, 16), name_space=name_space, server=server)
    return Selected(list(chosen.values()), refused)


def _listed(model: Model, user: str = "", *, all_users: bool = False) -> tuple[list[Conversation], Running | None]:
    """What a model holds; where a server has it open, what that tells of those users."""
    try:
        return list_model(model).conversations, None
    except HeldError as error:
        server = server_of(error.held)
        if server is None:
            raise
        told = list_server(server.url, server.key, user, all_users=all_users).models
        return [c for listing in told for c in listing.conversations], server


def select_user(cache: Path, user: str, prefix: str | None = None) -> Selected:
    """Selects everything that is stored of one user, whether or not a conversation lists it."""
    if not user or not _kernels.is_user_id(user):
        raise UserError(f"{user!r} is not a user id", "ids have 1 to 512 letters, digits, _ and -")
    name_space = _kernels.user_key(user)
    found = Selected([], [])
    for model in find_models(cache, prefix):
        folder = Path(_kernels.user_folder(str(cache), model.fingerprint, name_space))
        try:
            with explaining(model):
                size = _kernels.measure_tree(str(folder))
            if folder.is_dir():
                listed, server = _listed(model, user)
                theirs = [c for c in listed if server is not None or c.user == name_space.hex()]
                found.targets.append(Target(model, theirs, size, name_space=name_space, user=user, server=server))
        except UserError as error:
            found.refused.append(Refusal.of(error))
    if not found.targets and not found.refused:
        raise UserError(f"nothing is stored for the user {user!r} in {cache}", "check the id: it is case-sensitive")
    return found


def select_all(cache: Path, prefix: str | None = None) -> Selected:
    found = Selected([], [])
    for model in find_models(cache, prefix):
        try:
            listed, server = _listed(model, all_users=True)
            with explaining(model):
                size = _kernels.measure_tree(str(model.path))
            found.targets.append(Target(model, listed, size, server=server))
        except UserError as error:
            found.refused.append(Refusal.of(error))
    return found


def keep(targets: Sequence[Target], ttl: str | None, expire: str | None) -> list[Conversation]:
    """Says how long conversations are kept, and gives them as they are listed then."""
    kept = []
    for target in targets:
        assert target.name_space is not None and target.hash is not None
        if target.server is not None:
            kept.append(keep_one(target.server.url, f"{target.hash:016x}", ttl, expire, target.server.key))
            continue
        with opened(target.model, change=True) as store:
            try:
                store.set_lifetime(target.name_space, target.hash, ttl=ttl, expire=expire)
            except ValueError as error:
                raise UserError(str(error)) from error
            kept += [
                conversation_of(c)
                for c in store.conversations()
                if (c.name_space, c.hash) == (target.name_space, target.hash)
            ]
    return kept


def remove(cache: Path, selected: Selected, logs: Sequence[Path] = ()) -> Removed:
    """What one refuses keeps none of the others."""
    done = Removed(str(cache), 0, [], [], list(selected.refused))
    freed = 0
    for target in selected.targets:
        try:
            freed += _remove(target)
            done.conversations.extend(target.conversations)
        except UserError as error:
            done.refused.append(Refusal.of(error))
    for log in logs:
        try:
            freed += _remove_log(log)
            done.logs.append(str(log))
        except UserError as error:
            done.refused.append(Refusal.of(error))
    return replace(done, bytes_freed=freed)


def _remove_log(log: Path) -> int:
    try:
        size = log.stat().st_size
        log.unlink()
    except OSError as error:
        raise UserError(f"cannot remove {log}: {error.strerror}", "run as the user whose server wrote it") from error
    return size


def _remove(target: Target) -> int:
    if target.server is not None and target.hash is None and not target.user:
        return remove_on_server(target.server.url, target.server.key)
    if target.server is not None:
        path = f"/cache/users/{target.user}" if target.hash is None else f"/cache/conversations/{target.hash:016x}"
        return int(ask(target.server.url, path, target.server.key, delete=True)["bytes_freed"])
    if target.name_space is None:
        check_writable(target.model.cache)
        check_writable(target.model.path)
        with explaining(target.model):
            return _kernels.remove_model(str(target.model.cache), target.model.fingerprint)
    with opened(target.model, change=True) as store:
        if target.hash is None:
            return store.remove_name_space(target.name_space)
        return store.remove_conversation(target.name_space, target.hash)
