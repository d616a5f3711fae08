"""Has `llama-run cache push` and `cache pull`, which hand a conversation from one server or folder to another."""

from __future__ import annotations

import os

import click

from pyrun import _kernels, console
from pyrun.cache.handover import FilePlace, Head, ServerPlace, hand_over, place_of
from pyrun.cli.completion import complete_conversation
from pyrun.errors import UserError
from pyrun.server.address import KEY_VARIABLE, key_of
from pyrun.server.usual import OTHERWISE, find_server

PEER_KEY_VARIABLE = "LLAMA_PEER_API_KEY"

_url = click.option(
    "--url",
    help=f"The server here {OTHERWISE}. Its API key, if any, is taken from {KEY_VARIABLE}; that of the other one from "
    f"{PEER_KEY_VARIABLE}, or else from {KEY_VARIABLE} as well.",
)
_model = click.option(
    "--model", metavar="NAME", help="Of several models that a server has: its name, or a part of it. It must be loaded."
)
_user = click.option("--user", metavar="ID", default="", help="Whose conversation it is, by the id that requests give.")


@click.command("push")
@click.argument("wanted", metavar="HASH", shell_complete=complete_conversation)
@click.option("--to", "place", metavar="URL|DIR", required=True, help="The other server, or a folder.")
@_url
@_model
@_user
def push_command(wanted: str, place: str, url: str | None, model: str | None, user: str) -> None:
    """Hand a conversation to another server, or put it into a folder, by its hash or its first digits.

    Both servers must serve the same model with the same settings; the other one checks what it gets. What it has
    already is not sent, and a command that was interrupted goes on when it is given again.
    """
    _check(user)
    here, key = find_server(url)
    source = place_of(here, wanted, user, key, make=False, model=model)
    name = source.conversation if isinstance(source, ServerPlace) else source.path.name[:16]
    _carry(source, place_of(place, name, user, _peer_key(), make=True, model=model), name)


@click.command("pull")
@click.argument("wanted", metavar="HASH")
@click.option("--from", "place", metavar="URL|DIR", required=True, help="The other server, or a folder.")
@_url
@_model
@_user
def pull_command(wanted: str, place: str, url: str | None, model: str | None, user: str) -> None:
    """Take a conversation over from another server, or from a folder, by its hash or its first digits.

    It is `cache push`, asked for by the receiver.
    """
    _check(user)
    source = place_of(place, wanted, user, _peer_key(), make=False, model=model)
    name = source.conversation if isinstance(source, ServerPlace) else source.path.name[:16]
    here, key = find_server(url)
    _carry(source, place_of(here, name, user, key, make=True, model=model), name)


def _check(user: str) -> None:
    if not _kernels.is_user_id(user):
        raise UserError(f"{user!r} is not a user's id", "it has letters, digits, _ and -, 512 at most")


def _peer_key() -> str | None:
    return os.environ.get(PEER_KEY_VARIABLE) or key_of(os.environ)


def _carry(source: ServerPlace | FilePlace, sink: ServerPlace | FilePlace, name: str) -> None:
    shown: list[console.Progress] = []

    def report(done: int, total: int) -> None:
        if not shown:
            shown.append(console.Progress("handing over (MB)", console.STEPS))
        shown[0].reach(done // 1_000_000, max(1, total // 1_000_000))

    try:
        head: Head = hand_over(source, sink, report)
    finally:
        for progress in shown:
            progress.close()
    click.echo(f"{name}: {console.size(head.size)}, now at {_where(sink)}")


def _where(place: ServerPlace | FilePlace) -> str:
    return place.url if isinstance(place, ServerPlace) else str(place.path)
