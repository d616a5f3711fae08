"""Asks a running server about its cache: it has the store open, so the files are not ours to read."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil

from pyrun import console
from pyrun.cache.folder import HeldError, Model, Visited, bytes_on_disk, opened
from pyrun.cache.look import CacheStats, Conversation, Damage, Listing, Stats, Verified, whole_hash
from pyrun.cache.running import server_of
from pyrun.errors import UserError
from pyrun.server.ask import ask

EVERYTHING = "/cache/everything"  # the route that concerns all users
OWNER_FILE, OWNER_HEADER = ".owner-key", "X-Cache-Owner"


def summary(url: str, root: Path, key: str | None = None) -> str:
    """Says in one line, for the start of a server of ours, where its cache is and how full, or why it has none."""
    try:
        told = ask(url, "/cache", key, verify=False)
    except UserError as error:
        return f"unknown: {error.message}"
    if not told["enabled"]:
        return f"off: {_why_off(told)}"
    state = told["state"]
    n = state["conversations"]
    return (
        f"{_short(told['path'], root)}, {n:,} conversation{'' if n == 1 else 's'}, "
        f"{console.size(state['disk_bytes'])} of {console.size(state['disk_limit'])}"
    )


def fingerprint(url: str, key: str | None = None) -> tuple[Path, str] | None:
    """Gives the cache folder of a server of ours and what it calls its model there; None where it keeps nothing."""
    try:
        told = ask(url, "/cache", key, verify=False)
        return (Path(told["path"]), str(told["fingerprint"])) if told["enabled"] else None
    except UserError:
        return None


def _short(path: str, root: Path) -> str:
    try:
        return str(Path(path).relative_to(root))
    except ValueError:
        return path


def _why_off(told: dict[str, Any]) -> str:
    pid = told.get("held_by")
    if pid is None:
        return str(told["reason"])
    try:
        name = psutil.Process(pid).name()
    except psutil.Error:
        name = "a process"
    return f"{name} (pid {pid}) has this model's state in {told['path']} open"


def list_server(url: str, key: str | None = None, user: str = "", *, all_users: bool = False) -> Visited[Listing]:
    """Does as list_cache, for the one model that the server has, and for one user, those who name none, or all."""
    told, model = open_model(url, key)
    if all_users:
        answer = ask_as_owner(model, EVERYTHING)
    else:
        answer = ask(url, "/cache/conversations" + (f"?user_id={quote(user)}" if user else ""), key)
    found = [_conversation(one) for one in answer["conversations"]]
    found.sort(key=lambda c: (-c.last_used_ms, c.hash))
    size = bytes_on_disk(model.path)
    return Visited(told["path"], [Listing(model.name, size, found, sum(told["damaged"].values()), model.owner)], [])


def _conversation(told: dict[str, Any]) -> Conversation:
    """A server names users where it was asked for all; what else it may say is not shown here."""
    names = {field.name for field in fields(Conversation)}
    return Conversation(**{"user": None} | {name: value for name, value in told.items() if name in names})


def keep_on_server(
    url: str, hashes: Sequence[str], ttl: str | None, expire: str | None, key: str | None = None
) -> list[Conversation]:
    """Does as change.keep, for conversations that the server lists."""
    stored = [one["hash"] for one in ask(url, "/cache/conversations", key)["conversations"]]
    kept = []
    for wanted in hashes:
        name = whole_hash(wanted, stored)
        if name is None:
            raise UserError(f"{url} has no conversation {wanted}", f"`llama-run cache ls --url {url}` shows them")
        kept.append(keep_one(url, name, ttl, expire, key))
    return kept


def keep_one(url: str, name: str, ttl: str | None, expire: str | None, key: str | None = None) -> Conversation:
    """Does it for the one with this hash."""
    life = {what: value for what, value in (("ttl", ttl), ("expire", expire)) if value is not None}
    return _conversation(ask(url, f"/cache/conversations/{name}", key, post=life))


def server_stats(url: str, key: str | None = None) -> CacheStats:
    """Does as cache_stats, for the one model that the server has. Damage and leftovers count since its start."""
    told, model = open_model(url, key)
    state, counters = told["state"], told["counters"]
    aside = model.quarantined()
    stats = Stats(
        fingerprint=model.name,
        bytes=bytes_on_disk(model.path),
        conversations=state["conversations"],
        users=state["users"],
        turns=state["checkpoints"],
        pages=state["pages"],
        page_files=state["segments"],
        anchors=state["anchors"],
        hits=state["hits"],
        restores=counters["loads"],
        unfinished_files=counters["temporary_removed"],
        unusable_files=counters["loose_segments"],
        quarantine_files=aside.files,
        quarantine_bytes=aside.bytes,
        unreadable=counters["read_errors"],
        damaged={reason: n for reason, n in told["damaged"].items() if n},
    )
    cache = Path(told["path"])
    return CacheStats(
        told["path"], state["disk_bytes"], shutil.disk_usage(cache).free, Visited(told["path"], [stats], [])
    )


def verify_on_server(url: str, key: str | None = None) -> Visited[Verified]:
    """Does as verify_cache, for the one model that the server has."""
    told, model = open_model(url, key)
    found = ask_as_owner(model, "/cache/verify", post={})
    damaged = [Damage(one["path"], one["reason"], one["message"]) for one in found["damaged"]]
    verified = Verified(model.name, str(model.path), found["files"], found["bytes"], 0, damaged)
    return Visited(told["path"], [verified], [])


def remove_on_server(url: str, key: str | None = None) -> int:
    """Has it remove everything, of all users; gives the bytes that this freed."""
    _, model = open_model(url, key)
    return int(ask_as_owner(model, EVERYTHING, delete=True)["bytes_freed"])


def ask_as_owner(model: Model, path: str, *, post: object = None, delete: bool = False) -> Any:
    """A key in the folder proves that we may read everything there. It is told to the server that has it open."""
    file = model.cache / OWNER_FILE
    try:
        with opened(model):
            server = None
    except HeldError as error:
        server = server_of(error.held)
    if server is None:
        raise UserError(f"no server of yours has {model.path} open", "only its own server is asked about all users")
    try:
        headers = {OWNER_HEADER: file.read_text(encoding="ascii")}
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {file}", "run as the user whose server writes there") from error
    return ask(server.url, path, server.key, headers=headers, post=post, delete=delete, patience=None)


def open_model(url: str, key: str | None) -> tuple[Any, Model]:
    told = ask(url, "/cache", key)
    if not told["enabled"]:
        raise UserError(f"the cache of {url} is off: {_why_off(told)}", "leave --url out to read the folder")
    model = Model(Path(told["path"]), bytes.fromhex(told["fingerprint"]))
    if not model.path.is_dir():
        raise UserError(
            f"the server at {url} keeps its cache in {told['path']}, which is not on this machine",
            f"curl {url}/cache shows what it has",
        )
    return told, model
