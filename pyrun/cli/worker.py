"""Has `llama-run worker`: lends this machine's memory and processors to a server of another one."""

from __future__ import annotations

import os
import socket

import click

from pyrun import console
from pyrun.build.builder import BuildRequest, build
from pyrun.bundle.start import prepare_bundle
from pyrun.cli.backends import device_warning, settle_backend
from pyrun.cli.server import use_runtime
from pyrun.errors import UserError
from pyrun.home import BundledHome, find_home
from pyrun.machine.names import AUTO, BACKENDS
from pyrun.server.log import log_of, rotate
from pyrun.server.port import check_port
from pyrun.server.supervisor import State, Supervisor, Watched, stop_on_signals
from pyrun.workers.endpoint import DEFAULT_PORT, WARNING, Endpoint, check_private

READY_SECONDS = 1.0  # so long one try to reach it may take


@click.command("worker")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on: loopback, or this machine's own one in a private network.",
)
@click.option(
    "--port", type=click.IntRange(1, 65535), default=DEFAULT_PORT, show_default=True, help="Port to listen on."
)
@click.option(
    "--backend",
    type=click.Choice([AUTO, *BACKENDS]),
    default=AUTO,
    show_default=True,
    help="What to compute on. auto: the best for this machine that is built or can be.",
)
@click.option("--no-build", is_flag=True, help="Start what is built, without looking whether it is up to date.")
def worker_command(host: str, port: int, backend: str, no_build: bool) -> None:
    """Lend this machine to a model that is too large for one.

    `llama-run --server MODEL --workers HOST:PORT` on another machine uses it. It holds a part of the model for one
    server at a time, and starts again after a crash. Everybody who reaches it is trusted: see docs/fleet.md.
    """
    check_private(host)
    check_port(host, port)
    home = find_home()
    settled = settle_backend(home, backend, may_build=not no_build)
    if isinstance(home, BundledHome):
        prepare_bundle(home, settled.backend, os.environ)
    elif not no_build:
        build(home, BuildRequest(settled.backend), settled.snapshot)
    binary = home.worker_binary(settled.backend)
    if not binary.exists():
        raise UserError(f"{binary} is not built yet", f"run `llama-run build --backend {settled.backend}`")
    endpoint = Endpoint(host, port)
    console.say(f"warning: {WARNING.format(where=endpoint)}")
    if warning := device_warning(settled):
        console.say(warning)
    use_runtime(settled.machine, settled.backend)
    threads = str(settled.machine.cpu.threads)
    command = [str(binary), "--host", host, "--port", str(port), "--threads", threads]
    if settled.backend == "cpu":
        command += ["--device", "CPU"]  # a bundle has modules for graphics, too
    log = log_of(home.logs, port)
    rotate(log)
    console.say(f"log: {log}")
    _supervise(Watched(command, "", log, name="the worker", is_ready=lambda: _listens(endpoint)), endpoint)


def _listens(endpoint: Endpoint) -> bool:
    """It is not asked more: a server may have been faster, and nobody else is answered then."""
    try:
        socket.create_connection((endpoint.host, endpoint.port), READY_SECONDS).close()
    except OSError:
        return False
    return True


def _supervise(watched: Watched, endpoint: Endpoint) -> None:
    def listen(state: State, detail: str) -> None:
        if state is State.READY:
            console.say(f"worker: {endpoint} ({detail}); use it with `llama-run --server MODEL --workers {endpoint}`")
        elif state is State.BACKOFF:
            console.say(f"the worker ended: {detail}")
        elif state is State.STOPPED:
            console.say("stopped")

    supervisor = Supervisor(watched, listen)
    stop_on_signals(supervisor)
    supervisor.run()
