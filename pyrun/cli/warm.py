"""Has `llama-run warm`, which has a running server prepare prompts before they are asked."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from pyrun import console
from pyrun.cli.defaults import warm_file
from pyrun.errors import UserError
from pyrun.server.address import KEY_VARIABLE
from pyrun.server.served import choose_served, load
from pyrun.server.usual import OTHERWISE, find_server
from pyrun.server.warm import Warmed, read_bodies, system_body, warm


@click.command("warm")
@click.argument("file", required=False, metavar="FILE|NAME|-")
@click.option("--system", metavar="TEXT", help="Prepare this system prompt.")
@click.option(
    "--tools",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="With --system: the tools that come with it, as a JSON array.",
)
@click.option("--url", help=f"The server {OTHERWISE}. Its API key, if any, is taken from {KEY_VARIABLE}.")
@click.option("--model", metavar="NAME", help="Of several models: its name, or a part of it. It is loaded.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout, one line for each prompt.")
@click.pass_context
def warm_command(
    context: click.Context,
    file: str | None,
    system: str | None,
    tools: Path | None,
    url: str | None,
    model: str | None,
    as_json: bool,
) -> None:
    """Prepare prompts on a running server, so that whatever follows them begins at once.

    FILE holds bodies of chat requests, one JSON object per line, or a single one over several lines; `-` is stdin.
    NAME is one that [warm-files] of llama-run.toml gives to such a file.
    They are evaluated one after the other, in the server's idle time: real requests come first.
    """
    if (file is None) == (system is None) or (tools is not None and system is None):
        raise click.UsageError("say what to prepare: FILE, or --system TEXT with --tools FILE or without")
    if file not in (None, "-"):
        invocation = context.find_root().obj
        file = str(warm_file(invocation.settings, invocation.file, file))
    bodies = _bodies(file, system, tools)
    url, key = find_server(url)
    served = choose_served(url, key, model)
    with console.spinning(f"waiting for {served.name}"):
        load(url, key, served)
    failed = 0
    for number, body in enumerate(bodies, 1):
        progress = console.Progress(f"prompt {number}", console.STEPS, transient=True)
        try:
            done = warm(url, key, body, progress.reach, served.routed_name)
        except UserError as error:
            failed += 1
            console.show_error(UserError(f"prompt {number}: {error.message}", error.hint))
            continue
        finally:
            progress.close()
        click.echo(json.dumps(done.told) if as_json else f"prompt {number}: {_line(done)}")
    if failed:
        sys.exit(1)


def _bodies(file: str | None, system: str | None, tools: Path | None) -> list[dict[str, Any]]:
    if system is not None:
        return [system_body(system, None if tools is None else _text_of(str(tools)))]
    assert file is not None
    return read_bodies(_text_of(file), "stdin" if file == "-" else file)


def _text_of(file: str) -> str:
    try:
        return (sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()).decode("utf-8")
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"cannot read {file}: it is not UTF-8 at byte {error.start}") from error


def _line(done: Warmed) -> str:
    kept = f"{console.size(done.bytes)} {'on disk' if done.on_disk else 'not on disk yet'}"
    tokens = f"{done.tokens:,} tokens, {done.evaluated:,} evaluated, {done.restored:,} were there"
    return f"{tokens}; {kept}; {done.ms / 1000:.1f} s"
