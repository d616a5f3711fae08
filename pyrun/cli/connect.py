"""Has `llama-run connect`, which tells a coding agent where the server is. Only data goes to stdout."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

from pyrun import console
from pyrun.agents.endpoint import find_endpoint
from pyrun.agents.known import AGENTS, User
from pyrun.agents.merge import render
from pyrun.agents.setup import ConfigFile, Setup
from pyrun.agents.write import Change, apply, plan
from pyrun.errors import UserError
from pyrun.server.usual import OTHERWISE, find_server


@click.command("connect")
@click.argument("agent", type=click.Choice(sorted(AGENTS)))
@click.option("--url", help=f"The running server {OTHERWISE}.")
@click.option("--model", metavar="NAME", help="Of several models: its name, or a part of it. It is loaded.")
@click.option("--print/--write", "only_print", default=True, help="Show the settings, or write them (default: show).")
@click.option("--yes", is_flag=True, help="With --write: do not ask.")
def connect_command(agent: str, url: str | None, model: str | None, only_print: bool, yes: bool) -> None:
    """Make a coding agent use the running server.

    Address, key, model and context length are those of the server; the agent is told to wait long enough for a cold
    prompt. With --write they are merged into the agent's own settings: what else is there stays, and the file of before
    is kept beside it. The server's API key, if any, is taken from LLAMA_API_KEY.
    """
    if yes and only_print:
        raise click.UsageError("--yes goes with --write")
    url, key = find_server(url)
    with console.spinning(f"waiting for {model or 'the model'}"):
        endpoint = find_endpoint(url, key, model)
    setup = AGENTS[agent](endpoint, User(Path.home(), os.environ))
    if only_print:
        _print(setup)
    else:
        _write(setup, yes)
    console.say(f"{endpoint.model} at {endpoint.url}, {endpoint.context:,} tokens of context")


def _print(setup: Setup) -> None:
    for file in setup.files:
        _show(file)
    if setup.environment:
        instead = bool(setup.files) and setup.environment_suffices
        console.say("or, for one shell, in the environment:" if instead else "in the environment:")
        for name, value in setup.environment.items():
            click.echo(f"export {name}={shlex.quote(value)}")
    _print_notes(setup)


def _print_notes(setup: Setup) -> None:
    for note in setup.notes:
        console.say(f"note: {note}")
    if setup.files:
        console.say(f"`llama-run connect {setup.agent} --write` merges it into what is there")


def _show(file: ConfigFile) -> None:
    console.say(f"in {file.path}:")
    click.echo(render(file))


def _write(setup: Setup, yes: bool) -> None:
    if not setup.files:
        _print(setup)
        raise UserError(f"{setup.agent} has no settings file that could be written", "set what is printed above")
    changes = [(file, plan(file)) for file in setup.files]
    for file, change in changes:
        if change.problem:
            _show(file)
            raise UserError(
                f"{change.path} {change.problem}, so it is left alone", "add what is printed above to it by hand"
            )
    needed = [change for _, change in changes if change.is_needed]
    if not needed:
        console.say(f"{setup.agent} is set up already")
    if needed and not yes and not console.is_interactive():
        names = " and ".join(str(change.path) for change in needed)
        raise UserError(f"this would write {names}", "add --yes to do it without being asked")
    for change in needed:
        _write_one(change, yes)
    for note in setup.notes:
        console.say(f"note: {note}")


def _write_one(change: Change, yes: bool) -> None:
    verb = "make" if change.before is None else "change"
    if not yes and not click.confirm(f"{verb} {change.path}?", default=False, err=True):
        raise UserError(f"{change.path} was left alone", "--print shows what belongs there")
    kept = apply(change)
    console.say(f"{change.path} is written" + (f"; as it was: {kept}" if kept else ""))
    if change.is_open:
        console.say(f"note: {change.path} has a key in it: from now on only you can read it")
