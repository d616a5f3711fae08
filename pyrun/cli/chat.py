"""Has `llama-run chat`. With --once, only the answer goes to stdout."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource
from rich.console import Console

from pyrun.cli.completion import complete_model
from pyrun.cli.invocation import Invocation
from pyrun.errors import UserError
from pyrun.extras import missing_extra
from pyrun.home import find_home
from pyrun.machine.names import AUTO, BACKENDS
from pyrun.providers.known import LOCAL

if TYPE_CHECKING:
    from pyrun.chat.conversation import Chat

NEEDED = ("prompt_toolkit", "openai", "anthropic", "mcp", "mcp_types", "anyio", "jsonschema")
MAX_QUESTION_BYTES = 16_000_000


@click.command("chat")
@click.argument("words", nargs=-1, metavar="[MODEL] [-]", shell_complete=complete_model)
@click.option(
    "--provider",
    "providers",
    default=LOCAL,
    show_default=True,
    metavar="NAME[,NAME]",
    help="Who answers. If the first cannot be reached, is overloaded or over its limit, the next one does.",
)
@click.option("--model", metavar="NAME", help="As MODEL. Of several that are served: its name, or a part of it.")
@click.option("-c", "--continue", "resume", is_flag=True, help="Go on with the last session.")
@click.option("--session", metavar="ID", help="Go on with the chat of this id, or whose id begins so.")
@click.option("--system", type=click.Path(path_type=Path), metavar="FILE", help="What the model is told first.")
@click.option(
    "--tools",
    metavar="LIST",
    help="What the model can call: all, none, or names and groups with commas between (files, commands, http, json, "
    "memory, ask, an MCP server). Left out: all, or search_memory alone where the context is below 16,384 tokens.",
)
@click.option("--once", metavar="TEXT", help="Ask this, print the answer and leave; - reads it from stdin.")
@click.option("--allow", multiple=True, metavar="RULE", help="What tools may do unasked: TOOL or TOOL:PATTERN.")
@click.option("--commands", is_flag=True, help="Offer execute_command. It can do what you can.")
@click.option(
    "--root",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The folder of the tools: no path leads out of it (default: here).",
)
@click.option("--mcp", type=click.Path(path_type=Path), metavar="FILE", help="More MCP servers (default: mcp.json).")
@click.option("--user", metavar="ID", help="Whose sessions and memory (default: of those who give no id).")
@click.option("--backend", type=click.Choice([AUTO, *BACKENDS]), help="What a server that has to be started runs on.")
@click.option("--no-build", is_flag=True, help="If a server has to be started: start what is built.")
@click.pass_context
def chat_command(
    context: click.Context,
    words: tuple[str, ...],
    providers: str,
    model: str | None,
    resume: bool,
    session: str | None,
    system: Path | None,
    tools: str | None,
    once: str | None,
    allow: tuple[str, ...],
    commands: bool,
    root: Path | None,
    mcp: Path | None,
    user: str | None,
    backend: str | None,
    no_build: bool,
) -> None:
    """Talk to a model, with tools, memory and endless history.

    The server of this machine is found, or started for as long as the chat lasts, with MODEL as `llama-run --server`
    takes it. Sessions are kept. A - reads from stdin: the question, or what belongs to the one of --once.

    Exit codes: 0 answered, 1 failed, 2 wrong usage, 130 interrupted.
    """
    models = [word for word in words if word != "-"]
    if model is not None and (not models or context.get_parameter_source("model") is ParameterSource.COMMANDLINE):
        models.append(model)  # where llama-run.toml names one, another may be given
    if len(models) > 1:
        raise click.UsageError(f"{models[1]!r} is one model too many")
    if resume and session:
        raise click.UsageError("--continue and --session do not go together")
    question = _question(once, from_stdin="-" in words)
    if question is None and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UserError("this is no terminal", "ask one question: echo question | llama-run chat --once -")
    try:
        from pyrun.chat.local import Start
        from pyrun.chat.start import Wishes, chat

        if question is None:
            from pyrun.chat.interactive import run_interactive

            run: Callable[[Chat], None] = run_interactive
        else:
            from pyrun.chat.once import run_once

            run = partial(run_once, typed=question.typed, piped=question.piped)
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in NEEDED:
            raise
        raise missing_extra(str(error.name), "chat") from error
    extra = context.find_object(Invocation) or Invocation()
    flags = (*(("--backend", backend) if backend else ()), *(("--no-build",) if no_build else ()))
    wishes = Wishes(
        start=Start(models[0] if models else None, flags, extra.extra),
        providers=tuple(name.strip() for name in providers.split(",") if name.strip()),
        resume=resume,
        session=session,
        system=system,
        tools=tools,
        allow=allow,
        commands=commands,
        root=root,
        mcp=mcp,
        user=user,
    )
    with chat(find_home(), wishes, Console(highlight=False)) as talk:
        run(talk)


@dataclass(frozen=True)
class _Question:
    typed: str
    piped: str


def _question(once: str | None, *, from_stdin: bool) -> _Question | None:
    """What --once asks, and what stdin brings behind it."""
    if once is None and not from_stdin:
        return None
    typed = once.strip() if once and once != "-" else ""
    piped = ""
    if from_stdin or once == "-":
        piped = sys.stdin.buffer.read(MAX_QUESTION_BYTES).decode("utf-8", "replace").strip()
    if not typed and not piped:
        raise UserError("there is no question", "give one: llama-run chat --once 'Why is the sky blue?'")
    return _Question(typed, piped)
