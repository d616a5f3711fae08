"""Has `llama-run top`, which shows in a terminal what a running server does: the page's first views."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import click
from rich.console import Group
from rich.live import Live
from rich.text import Text

from pyrun import console
from pyrun.server.address import KEY_VARIABLE
from pyrun.server.ask import ask
from pyrun.server.live import Event, events, request_line, slot_line, waiting_line
from pyrun.server.served import choose_loaded
from pyrun.server.usual import OTHERWISE, find_server

SHOWN = 15


@dataclass
class Seen:
    """What is known of the server."""

    slots: list[dict[str, Any]] = field(default_factory=list)
    waiting: list[dict[str, Any]] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)  # newest first
    lost: int = 0  # events that this was too slow for

    def hear(self, event: Event) -> None:
        if event.name == "slots":
            self.slots, self.waiting = event.data["slots"], event.data["waiting"]
        elif event.name == "request":
            self.requests = [event.data, *self.requests][:SHOWN]
        elif event.name == "lost":
            self.lost += event.data["events"]

    def lines(self, now_ms: float) -> list[str]:
        """Says it, as the page does: now, then the last requests with where they left what is known."""
        said = [slot_line(slot) for slot in self.slots] + [waiting_line(one) for one in self.waiting]
        said.append("")
        for one in self.requests:
            age = console.duration(max(0.0, (now_ms - one["at_ms"]) / 1000))
            said.append(f"{age} ago: {request_line(one)}")
            if words := one.get("parted", {}).get("words"):
                reason = one.get("cache_miss", {}).get("reason", "").replace("_", " ")
                said.append(f"    {reason}: {console.printable(words)}")
        return said


@click.command("top")
@click.option("--url", help=f"The server {OTHERWISE}. Its API key, if any, is taken from {KEY_VARIABLE}.")
@click.option(
    "--model", metavar="NAME", help="Of several models: its name, or a part of it (default: the one that is loaded)."
)
@click.option("--once", is_flag=True, help="Print what is so now, and end; in a pipe it always does.")
def top_command(url: str | None, model: str | None, once: bool) -> None:
    """Show what a running server does now, and its last requests.

    It is what the page /dashboard shows first, for machines without a browser. Ctrl-C ends it.
    """
    url, key = find_server(url)
    named = choose_loaded(url, key, model).routed_name
    seen = Seen(requests=ask(url, "/cache/requests", key, model=named)["requests"][:SHOWN])
    if once or not console.out.is_terminal:
        seen.hear(Event("slots", ask(url, "/cache/slots", key, model=named)))
        click.echo("\n".join(seen.lines(1000 * time.time())))
        return
    with Live(console=console.out, screen=True, auto_refresh=False) as live:
        for event in events(url, key, model=named):
            seen.hear(event)
            rows = console.out.height
            lines = [Text(line, no_wrap=True, overflow="ellipsis") for line in seen.lines(1000 * time.time())[:rows]]
            live.update(Group(*lines), refresh=True)
    console.say(f"the server at {url} has ended")
