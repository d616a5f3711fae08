"""The server of this machine: found where it runs, else started for as long as the chat runs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyrun import console
from pyrun.agents.endpoint import Endpoint, find_endpoint
from pyrun.chat.prompt import MESSAGE_TOKENS, estimate
from pyrun.errors import UserError
from pyrun.home import Home
from pyrun.launch import llama_run_command
from pyrun.providers.known import LOCAL, Provider
from pyrun.server.address import Address
from pyrun.server.ask import ask, await_loaded, health
from pyrun.server.supervisor import end_with_parent
from pyrun.server.usual import usual_server

STOP_SECONDS = 150.0  # the launcher gives the server 120 to save
SHOWN_LINES = 20


@dataclass(frozen=True)
class Start:
    """What the server is started with, if it has to be."""

    model: str | None = None
    flags: tuple[str, ...] = ()  # of `llama-run --server`
    extra: tuple[str, ...] = ()  # behind `--`


@contextmanager
def local_server(home: Home, start: Start) -> Iterator[Endpoint]:
    """The one that runs at the usual address, or a new one, which ends with the chat."""
    address, key = usual_server(start.extra, start.model)
    if health(address.url) is not None:
        await_loaded(address.url)
        with console.spinning(f"waiting for {start.model or 'the model'}"):  # one of several may have to be loaded
            found = find_endpoint(address.url, key, start.model)
        yield found
        return
    with _started(home, start, address):
        yield find_endpoint(address.url, key)


@contextmanager
def _started(home: Home, start: Start, address: Address) -> Iterator[None]:
    """A launcher of its own looks after it: it starts it again after a crash, and has it save its state at the end."""
    log = home.logs / "chat-server.log"
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    command = [*llama_run_command(), "--server", *([start.model] if start.model else []), *start.flags]
    # It listens where it is waited for, whatever says otherwise.
    command += ["--", *start.extra, *address.words]
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as output:
        launcher = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C stops an answer, not the server
            preexec_fn=end_with_parent(os.getpid()),
        )
    try:
        with console.waiting("starting the server; the first time, it is built, which takes minutes"):
            _await(launcher, address.url, log)
        yield
    finally:
        _stop(launcher)


def _await(launcher: subprocess.Popen[bytes], url: str, log: Path) -> None:
    while health(url) != 200:
        if launcher.poll() is not None:
            tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-SHOWN_LINES:])
            raise UserError(f"the server did not start:\n{tail}", f"`llama-run --server` starts it alone; log: {log}")
        time.sleep(0.2)


def _stop(launcher: subprocess.Popen[bytes]) -> None:
    if launcher.poll() is not None:
        return
    launcher.send_signal(signal.SIGTERM)
    try:
        with console.waiting("stopping the server, which saves its state"):
            launcher.wait(STOP_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        with contextlib.suppress(OSError):
            launcher.send_signal(signal.SIGINT)  # the launcher takes a second signal for hurry
            launcher.wait(10)


def local_provider(endpoint: Endpoint) -> Provider:
    return Provider(
        LOCAL, endpoint.openai_url, "openai", endpoint.model, endpoint.key, kind=LOCAL, context=endpoint.context
    )


def counter(endpoint: Endpoint | None) -> Callable[[str], int]:
    """How many tokens a message has, by the local model where there is one. What cannot be asked is estimated."""

    def count(text: str) -> int:
        if endpoint is None:
            return estimate(text)
        try:
            body = {"content": text, "model": endpoint.model}  # a server of several models asks for whom
            return len(ask(endpoint.url, "/tokenize", endpoint.key, post=body, verify=False)["tokens"]) + MESSAGE_TOKENS
        except (UserError, KeyError, TypeError):
            return estimate(text)

    return count
