"""Asks several servers at once how they are, and says it in one table."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pyrun import console
from pyrun.errors import UserError
from pyrun.server.ask import ask, server_url

HEADINGS = ("server", "model", "busy", "waiting", "requests", "reused", "talks", "in RAM", "on disk", "state")
NUMBERS = range(2, 9)  # these columns are aligned at the right
AT_ONCE = 32


@dataclass(frozen=True)
class ServerStatus:
    url: str
    problem: str | None = None  # why nothing more is known
    model: str = ""
    fingerprint: str = ""  # servers with one can share state
    slots: int = 0
    busy: int = 0
    waiting: int = 0
    requests: int = 0  # finished
    tokens_reused: int = 0
    tokens_evaluated: int = 0
    conversations: int = 0
    ram_bytes: int = 0
    disk_bytes: int = 0
    last_error: str = ""  # of its cache

    @property
    def reused(self) -> float | None:
        tokens = self.tokens_reused + self.tokens_evaluated
        return self.tokens_reused / tokens if tokens else None


def ask_one(url: str, key: str | None) -> ServerStatus:
    url = server_url(url).rstrip("/")
    try:
        told = ask(url, "/cache", key)
        models = ask(url, "/v1/models", key)["data"]
        model = str(models[0]["id"]) if models else ""
        if not told["enabled"]:
            return ServerStatus(url, f"no cache: {told['reason']}", model)
        load, state, requests = told["load"], told["state"], told["requests"]
        return ServerStatus(
            url=url,
            model=model,
            fingerprint=told["fingerprint"],
            slots=load["slots"],
            busy=load["busy"],
            waiting=load["waiting"],
            requests=requests["finished"],
            tokens_reused=requests["tokens_reused"],
            tokens_evaluated=requests["tokens_evaluated"],
            conversations=state["conversations"],
            ram_bytes=state["ram_bytes"],
            disk_bytes=state["disk_bytes"],
            last_error=told["last_error"],
        )
    except UserError as error:
        return ServerStatus(url, error.message)
    except (LookupError, TypeError):
        return ServerStatus(url, "answers otherwise than a server of llama-run does")


def ask_all(urls: Sequence[str], key: str | None) -> list[ServerStatus]:
    with ThreadPoolExecutor(min(AT_ONCE, len(urls))) as pool:
        return list(pool.map(lambda url: ask_one(url, key), urls))


def table(servers: Sequence[ServerStatus]) -> list[str]:
    return console.columns([HEADINGS, *(_row(one) for one in servers)], NUMBERS)


def _row(one: ServerStatus) -> tuple[str, ...]:
    model = console.printable(one.model)
    if one.problem is not None:
        return (one.url, model or "-", *["-"] * 7, console.printable(one.problem))
    return (
        one.url,
        f"{model} ({one.fingerprint[:8]})",
        f"{one.busy} of {one.slots}",
        str(one.waiting),
        f"{one.requests:,}",
        "-" if one.reused is None else f"{one.reused:.0%}",
        f"{one.conversations:,}",
        console.size(one.ram_bytes),
        console.size(one.disk_bytes),
        console.printable(one.last_error) or "well",
    )


def apart(servers: Sequence[ServerStatus]) -> str | None:
    """Says it where servers of a fleet cannot have state in common."""
    known = {one.fingerprint for one in servers if one.fingerprint}
    if len(known) < 2:
        return None
    return (
        f"{len(known)} different fingerprints: servers whose model or settings differ cannot use each other's state; "
        "`llama-run cache push` names the difference"
    )
