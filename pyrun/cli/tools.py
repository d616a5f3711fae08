"""`llama-run tools`: the tool server, and its tools without it. Data goes to stdout, everything else to stderr."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyrun import console
from pyrun.errors import UserError
from pyrun.home import find_home

if TYPE_CHECKING:
    from pyrun.tools.toolbox import Toolbox


@click.group("tools", invoke_without_command=True)
@click.option("--root", metavar="DIR", type=click.Path(path_type=Path), help="No path leads out of it (default: here).")
@click.option(
    "--allow", multiple=True, metavar="RULE", help="What needs no question: TOOL, TOOL:PATTERN, address:IP:PORT."
)
@click.option("--commands", is_flag=True, help="Offer execute_command. It can do what you can.")
@click.option("--user", metavar="ID", help="Whose memory it is (default: of those who give no id).")
@click.option(
    "--memory",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="The memory's folder (default: memory/ in the clone).",
)
@click.option("--protect", multiple=True, hidden=True, type=click.Path(path_type=Path))
@click.pass_context
def tools_group(
    context: click.Context,
    root: Path | None,
    allow: tuple[str, ...],
    commands: bool,
    user: str | None,
    memory: Path | None,
    protect: tuple[Path, ...],
) -> None:
    """Serve tools to agents, by MCP over stdin and stdout: files, HTTP, JSON, memory, other models, commands.

    What changes something asks first, where a person can be asked, and is refused where not. Every call is written down
    in logs/tools.jsonl. The table [tools] of llama-run.toml holds the same settings: docs/tools.md.
    """
    from pyrun.tools.setup import load_setup
    from pyrun.tools.toolbox import Toolbox

    if context.invoked_subcommand is None:
        from pyrun.tools.server import serve
    setup = load_setup(
        find_home(),
        os.environ,
        root=root,
        memory=memory,
        user=user,
        allow=allow,
        commands=commands,
        protect=protect,
    )
    context.obj = Toolbox(setup)
    if context.invoked_subcommand is None:
        serve(context.obj)


@tools_group.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout, with the schemas.")
@click.pass_obj
def list_command(box: Toolbox, as_json: bool) -> None:
    """List the tools."""
    if as_json:
        tools = [{"name": t.name, "description": t.description, "input": t.schema} for t in box.tools.values()]
        click.echo(json.dumps(tools, indent=2, ensure_ascii=False))
        return
    rows = [(tool.name, "asks" if tool.changes else "", tool.description) for tool in box.tools.values()]
    for line in console.columns(rows):
        click.echo(line)


@tools_group.command("call")
@click.argument("name")
@click.argument("arguments", default="{}")
@click.pass_obj
def call_command(box: Toolbox, name: str, arguments: str) -> None:
    """Call the tool NAME with ARGUMENTS, a JSON object, and print its result."""
    from pyrun.tools.tool import ToolError

    try:
        given = json.loads(arguments)
    except ValueError as error:
        raise UserError(f"the arguments are no JSON: {error}", """such as '{"path": "README.md"}'""") from error
    if not isinstance(given, dict):
        raise UserError("the arguments are no JSON object", """such as '{"path": "README.md"}'""")
    try:
        pending = box.prepare(name, given)
        if pending.needs_consent:
            if not console.is_interactive():
                raise box.refuse(pending, f"{name} has to be allowed: --allow {name}")
            try:
                allowed = click.confirm(f"{box.ask(pending)}\n", default=False, err=True)
            except click.Abort:
                box.refuse(pending, "the question was left")
                raise
            if not allowed:
                raise box.refuse(pending, "it was not allowed")
        result = box.make(pending)
    except (ToolError, OSError) as error:  # the audit log may be one that cannot be written
        raise UserError(str(error)) from error
    click.echo(result)
