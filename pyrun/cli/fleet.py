"""Has `llama-run fleet`, for several servers of one model."""

from __future__ import annotations

import json
import os
from dataclasses import asdict

import click

from pyrun import console
from pyrun.errors import UserError
from pyrun.fleet.config import ROUTERS, By, Router, parse_fleet, start_lines, write_config
from pyrun.fleet.status import apart, ask_all, table
from pyrun.server.address import key_of


@click.group("fleet")
def fleet_group() -> None:
    """Run several servers of one model: set up a router, and see them all."""


@fleet_group.command("config")
@click.argument("router", type=click.Choice(ROUTERS))
@click.argument("urls", metavar="URL...", nargs=-1, required=True)
@click.option("--listen", metavar="HOST:PORT", default="127.0.0.1:9000", show_default=True, help="Where clients come.")
@click.option(
    "--by",
    type=click.Choice(["conversation", "user"]),
    default="conversation",
    show_default=True,
    help="What stays together on a server.",
)
@click.option(
    "--slots", type=click.IntRange(min=1), default=4, show_default=True, help="How many requests a server has at once."
)
@click.option(
    "--user-header", metavar="NAME", help="The header that says whose a request is, set by the router's side."
)
@click.option("--shared", metavar="DIR", help="The folder of the shared tier, where the servers have one.")
def config_command(
    router: Router, urls: tuple[str, ...], listen: str, by: By, slots: int, user_header: str | None, shared: str | None
) -> None:
    """Print a configuration for a router in front of these servers.

    sglang-router compares prompts with those that each server had. haproxy and nginx know a conversation by its
    X-Conversation-Id, llama_conversation_id or prompt_cache_key, else its user, else the client's address.
    """
    fleet = parse_fleet(urls, listen, by, slots, user_header, shared)
    click.echo(write_config(router, fleet), nl=False)
    console.say("start each server so that the router reaches it, with the same key for all:")
    for line in start_lines(fleet):
        console.say(f"  {line}")
    console.say(
        {
            "sglang-router": "then run what was printed: sh ROUTER.sh, where sglang-router is installed",
            "haproxy": "check and run what was printed: haproxy -c -f FILE && haproxy -f FILE",
            "nginx": "check and run what was printed: nginx -t -c /PATH/FILE && nginx -c /PATH/FILE",
        }[router]
    )


@fleet_group.command("status")
@click.argument("urls", metavar="URL...", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
def status_command(urls: tuple[str, ...], as_json: bool) -> None:
    """Show servers in one table: what they do, and what they reuse.

    REUSED is the part of all prompts' tokens that was not evaluated since the server started. The API key is taken from
    LLAMA_API_KEY. Exits with 1 when a server does not answer.
    """
    servers = ask_all(urls, key_of(os.environ))
    if as_json:
        click.echo(json.dumps([asdict(one) for one in servers], indent=2))
    else:
        for line in table(servers):
            click.echo(line)
    if said := apart(servers):
        console.say(f"warning: {said}")
    away = [one.url for one in servers if one.problem is not None]
    if away:
        raise UserError(f"{len(away)} of {len(servers)} servers do not serve with a cache: {', '.join(away)}")
