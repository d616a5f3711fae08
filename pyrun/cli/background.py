"""Has `llama-run start`, `stop`, `status` and `logs`: a server in the background, without systemd."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import click

from pyrun import console
from pyrun.cli.completion import complete_model
from pyrun.errors import UserError
from pyrun.home import CODE, Home, find_home, is_bundle, is_clone
from pyrun.launch import llama_run_command
from pyrun.machine.names import AUTO, BACKENDS
from pyrun.models.find import find_model, names_in
from pyrun.server.ask import ask
from pyrun.server.port import check_port
from pyrun.server.usual import usual_server
from pyrun.service import background

POLL_SECONDS = 0.5
SHOWN_LINES = 20

port_option = click.option(
    "--port", type=click.IntRange(1, 65535), help="The server's port (default: as it was started)."
)


def own_command() -> list[str]:
    """Starts llama-run as this one was: a clone's own script, which keeps itself up to date, a bundle's, or the
    package."""
    if is_clone():
        return [str(CODE / "llama-run")]
    if is_bundle():
        return [str(CODE.parent / "llama-run")]
    script = Path(sys.executable).with_name("llama-run")
    return [str(script)] if script.is_file() else llama_run_command()


def server_words(model: str | None, everything: bool) -> list[str]:
    """What `--server` is given for a model, for several with commas between, or for all."""
    if model and everything:
        raise click.UsageError("--all serves all models: name none")
    return ["--server", "--all"] if everything else [f"--server={model}"] if model else ["--server"]


@click.command("start")
@click.argument("model", required=False, shell_complete=complete_model)
@click.option("--all", "everything", is_flag=True, help="Serve all models in models/, each when it is asked for.")
@click.option("--host", help="Address to listen on.")
@click.option("--port", type=click.IntRange(1, 65535), help="Port to listen on.")
@click.option("--backend", type=click.Choice([AUTO, *BACKENDS]), help="What to run on.")
@click.option("--ctx", type=click.IntRange(min=1), help="Context size in tokens.")
@click.option("--no-build", is_flag=True, help="Start what is built, without looking whether it is up to date.")
@click.option("--wait/--no-wait", default=True, help="Wait until it is ready (default: yes).")
@click.pass_context
def start_command(
    context: click.Context,
    model: str | None,
    everything: bool,
    host: str | None,
    port: int | None,
    backend: str | None,
    ctx: int | None,
    no_build: bool,
    wait: bool,
) -> None:
    """Start a server in the background: as --server does, but it stays when the terminal goes.

    There is one for each port. What is not given is taken from llama-run.toml.
    """
    home = find_home()
    served = server_words(model, everything)
    invocation = context.find_root().obj
    for name in names_in(home, model) if model else []:
        find_model(home, name)
    address, _ = usual_server(invocation.extra, model, everything=everything, host=host, port=port)
    flags = {"--backend": backend, "--ctx": ctx}
    words = [word for flag, value in flags.items() if value is not None for word in (flag, str(value))]
    words += ["--no-build"] if no_build else []
    # It listens where it is waited for, whatever says otherwise.
    command = [*own_command(), *words, *served, "--", *invocation.extra, *address.words]
    if background.find(home.logs, address.port) is None:
        # A server that already listens there would be taken for this one.
        for one in address.hosts:
            check_port(one, address.port)
    started = background.start(command, home.logs, address.port, address.url)
    if wait:
        _wait_until_ready(started)
    console.say(f"{started.url} (pid {started.pid}); `llama-run stop` stops it, `llama-run logs` shows what it says")


def _wait_until_ready(started: background.Started) -> None:
    with console.waiting(f"starting {started.url}"):
        while True:
            if started.process() is None:
                raise UserError(f"the server did not start:\n{_tail(Path(started.log))}", f"the log is {started.log}")
            with contextlib.suppress(UserError):
                ask(started.url, "/health", verify=False)
                return
            time.sleep(POLL_SECONDS)


@click.command("stop")
@port_option
@click.option("--all", "everything", is_flag=True, help="Stop all that were started.")
def stop_command(port: int | None, everything: bool) -> None:
    """Stop a server that `llama-run start` started. It saves its state first."""
    home = find_home()
    for one in background.find_all(home.logs) if everything else [_chosen(home, port)]:
        with console.waiting(f"stopping {one.url}"):
            background.stop(home.logs, one)
        console.say(f"{one.url} is stopped")


@click.command("status")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
def status_command(as_json: bool) -> None:
    """Show the servers that `llama-run start` started and that still run."""
    rows = []
    for one in background.find_all(find_home().logs):
        rows.append({**asdict(one), "state": _state(one)})
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    elif not rows:
        console.say("no server was started with `llama-run start`, or it has ended")
    else:
        shown = [("url", "pid", "state", "for")]
        for row in rows:
            shown.append((row["url"], str(row["pid"]), row["state"], console.duration(time.time() - row["began"])))
        for line in console.columns(shown):
            click.echo(line)


def _state(one: background.Started) -> str:
    try:
        ask(one.url, "/health", verify=False)
    except UserError:
        return "starting or stopping"
    return "ready"


@click.command("logs")
@port_option
@click.option("-n", "count", type=click.IntRange(min=1), default=SHOWN_LINES, show_default=True, help="How many lines.")
@click.option("--follow", "-f", is_flag=True, help="Go on showing what is added.")
@click.option("--server", "of_server", is_flag=True, help="What llama-server says, not the launcher. It holds prompts.")
def logs_command(port: int | None, count: int, follow: bool, of_server: bool) -> None:
    """Show what a server in the background says."""
    one = _chosen(find_home(), port)
    log = one.server_log if of_server else one.log
    with contextlib.suppress(KeyboardInterrupt):
        subprocess.run(["tail", "-n", str(count), *(["-F"] if follow else []), log], check=False)


def _chosen(home: Home, port: int | None) -> background.Started:
    found = [one for one in background.find_all(home.logs) if port in (None, one.port)]
    if not found:
        where = f" at port {port}" if port else ""
        raise UserError(
            f"no server that `llama-run start` started runs{where}",
            "one that runs in a terminal is stopped there, with Ctrl-C; a unit of systemd by `systemctl --user`",
        )
    if len(found) > 1:
        raise UserError(
            f"there are several: {', '.join(one.url for one in found)}", f"say which: --port {found[0].port}"
        )
    return found[0]


def _tail(log: Path) -> str:
    text = ""
    with contextlib.suppress(OSError):
        text = log.read_text(encoding="utf-8", errors="replace")
    return "\n".join("  " + line for line in text.splitlines()[-SHOWN_LINES:])
