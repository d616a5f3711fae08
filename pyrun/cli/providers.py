"""Has `llama-run providers`: which models can be asked, beside the server here. No key is shown, or taken as a word."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import click

from pyrun import console
from pyrun.errors import UserError
from pyrun.home import Home, find_home
from pyrun.providers.change import put_provider, remove_provider
from pyrun.providers.events import End, ProviderError, Request
from pyrun.providers.keys import write_key
from pyrun.providers.known import KINDS, NAME, PROTOCOLS, Provider, find_provider, load_providers
from pyrun.providers.stream import stream

TEST_SECONDS = 60.0


@click.group("providers")
def providers_group() -> None:
    """Set up models that others serve, or another server here does.

    They are the tables [providers.NAME] of llama-run.toml. `chat --provider NAME` talks to one, and ask_NAME gives it
    to models as a tool.
    """


@providers_group.command("add")
@click.argument("name")
@click.option("--kind", type=click.Choice(sorted(KINDS)), help="A service that is known (default: NAME, if it is one).")
@click.option("--model", required=True, metavar="NAME", help="The model, as the service calls it.")
@click.option("--base-url", metavar="URL", help="Where it is, if it is none of the known services.")
@click.option("--protocol", type=click.Choice(PROTOCOLS), help="What it speaks (default: openai).")
@click.option("--key-env", metavar="VARIABLE", help="The environment variable that has the key.")
@click.option("--key-stdin", is_flag=True, help="Read the key from stdin and keep it in keys.json, for you alone.")
@click.option("--context", type=click.IntRange(min=1), help="Tokens that a conversation may have.")
@click.option("--price-prompt", type=click.FloatRange(min=0), help="Dollars for a million tokens of prompts.")
@click.option("--price-cached", type=click.FloatRange(min=0), help="Of those that the service has in its cache.")
@click.option("--price-answer", type=click.FloatRange(min=0), help="Of answers.")
@click.option("--max-cost", type=click.FloatRange(min=0), help="Dollars that ask_NAME may cost until it is restarted.")
@click.option("--description", help="What it is good at, for models that may ask it.")
def add_command(name: str, key_stdin: bool, **given: Any) -> None:
    """Add the provider NAME, or change it."""
    home = find_home()
    if not NAME.fullmatch(name):
        raise UserError(f"{name!r} is no name for a provider", "use lower-case letters, digits and _")
    kind = given["kind"] or (name if name in KINDS else None)
    if kind is None and given["base_url"] is None:
        raise UserError(f"where is {name}?", f"add --base-url URL, or --kind: {', '.join(sorted(KINDS))}")
    put_provider(home.settings, name, {option: value for option, value in given.items() if value is not None})
    key = _read_key() if key_stdin else None
    if key:
        write_key(home.keys, name, key)
    provider = find_provider(_load(home), name)
    console.say(f"{name}: {provider.model} at {provider.base_url}")
    if provider.key is None and kind != "ollama":
        variable = given["key_env"] or (KINDS[kind].key_env if kind else None) or "a variable, named with --key-env"
        console.say(f"it has no key: set {variable}, or add --key-stdin")


def _read_key() -> str:
    asks = sys.stdin.isatty()
    key = str(click.prompt("key", hide_input=True, err=True) if asks else sys.stdin.readline()).strip()
    if not key:
        raise UserError("the key is empty", "give it on stdin: --key-stdin < FILE")
    return key


def _load(home: Home) -> list[Provider]:
    return load_providers(home.settings, os.environ, home.keys)


@providers_group.command("list")
def list_command() -> None:
    """List them, and whether their keys are known."""
    rows = [(p.name, p.model, p.protocol, p.base_url, "has a key" if p.key else "no key") for p in _load(find_home())]
    for line in console.columns(rows):
        click.echo(line)
    if not rows:
        console.say(f"no providers; add one: llama-run providers add NAME --model M ({', '.join(sorted(KINDS))})")


@providers_group.command("remove")
@click.argument("name")
def remove_command(name: str) -> None:
    """Remove NAME, and its key from keys.json."""
    home = find_home()
    was_there = remove_provider(home.settings, name)
    write_key(home.keys, name, None)
    if not was_there:
        raise UserError(f"there is no provider {name!r}", "`llama-run providers list` lists them")


@providers_group.command("test")
@click.argument("names", nargs=-1, metavar="[NAME]...")
def test_command(names: tuple[str, ...]) -> None:
    """Ask each of them, or those named, for a word, and say what came back."""
    known = _load(find_home())
    chosen = [find_provider(known, name) for name in names] or known
    failed = 0
    for provider in chosen:
        problem, seconds = _try(provider)
        failed += problem is not None
        click.echo(f"{provider.name}: {problem or f'answered after {seconds:.1f} s'}")
    if failed:
        raise UserError(f"{failed} of {len(chosen)} did not answer", "check their addresses, keys and models")


def _try(provider: Provider) -> tuple[str | None, float]:
    began = time.monotonic()
    request = Request([{"role": "user", "content": "Say hello."}], max_tokens=64)
    try:
        for event in stream(provider, request, TEST_SECONDS):
            if isinstance(event, End):
                return None, time.monotonic() - began
    except ProviderError as error:
        return f"{error.kind}: {error.message}", 0.0
    return "it said nothing", 0.0
