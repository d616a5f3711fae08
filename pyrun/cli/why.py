"""Has `llama-run cache why`, which says what a running server evaluated lately, and why."""

from __future__ import annotations

import json
import time
from dataclasses import asdict

import click

from pyrun import console
from pyrun.cache.why import Finished, finished_requests
from pyrun.server.address import KEY_VARIABLE
from pyrun.server.served import choose_loaded
from pyrun.server.usual import OTHERWISE, find_server


@click.command("why")
@click.option("--url", help=f"The server {OTHERWISE}. Its API key, if any, is taken from {KEY_VARIABLE}.")
@click.option(
    "--model", metavar="NAME", help="Of several models: its name, or a part of it (default: the one that is loaded)."
)
@click.option("--user", metavar="ID", default="", help="Of this user; else of requests that name none.")
@click.option("-n", "count", type=click.IntRange(min=1), default=10, show_default=True, help="How many requests.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
def why_command(url: str | None, model: str | None, user: str, count: int, as_json: bool) -> None:
    """Show why the last prompts were evaluated, with the words where they left what is known.

    A prompt that parts before the user's first message has something in its beginning that changes: what is known to
    help is said. The server remembers its last 256 requests.
    """
    url, key = find_server(url)
    shown = finished_requests(url, key, user, choose_loaded(url, key, model).routed_name)[:count]
    if as_json:
        click.echo(json.dumps([asdict(one) for one in shown], indent=2))
        return
    if not shown:
        console.say("no request has ended yet since the server started")
    for one in shown:
        click.echo(_line(one))
        for text in _reasons(one):
            click.echo(f"    {console.printable(text)}")


def _line(one: Finished) -> str:
    age = console.duration(max(0.0, time.time() - one.at_ms / 1000))
    total = one.reused + one.evaluated
    return f"{age} ago: {one.reused:,} of {total:,} tokens reused ({one.source}), {one.evaluated:,} evaluated"


def _reasons(one: Finished) -> list[str]:
    if one.reason is None:
        return []
    lines = [one.reason.replace("_", " ") + (f" at token {one.at:,}" if one.at is not None else "")]
    if one.words:
        lines[0] += f": {one.words}"
    return lines + ([one.advice] if one.advice else [])
