"""Has `llama-run bundle`."""

from __future__ import annotations

import time
from pathlib import Path

import click

from pyrun import console
from pyrun.bundle.make import Wanted, make_bundle
from pyrun.bundle.trial import try_bundle
from pyrun.errors import UserError
from pyrun.home import find_home
from pyrun.machine.isa import PORTABLE
from pyrun.machine.names import BACKENDS
from pyrun.models.default import default_model_path


@click.command("bundle")
@click.option(
    "--backend",
    type=click.Choice(BACKENDS),
    default="cpu",
    show_default=True,
    help="What it can run on, apart from the processor, which it always can.",
)
@click.option(
    "--target",
    metavar="CPU",
    default=PORTABLE,
    show_default=True,
    help="portable: the code for the processor is chosen when a server starts, and graphics are used where their "
    "driver is. A processor's name, such as zen4, makes it smaller, for machines of that kind alone.",
)
@click.option("--with-model", is_flag=True, help="Put the small built-in model into it, so that it answers at once.")
@click.option(
    "--into",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("dist"),
    show_default=True,
    help="The folder for the archive.",
)
@click.option("--jobs", "-j", type=click.IntRange(min=1), help="Parallel compilers (default: one per core).")
@click.option("--web-ui/--no-web-ui", default=True, help="Build upstream's web page, where npm is (default: yes).")
def bundle_command(backend: str, target: str, with_model: bool, into: Path, jobs: int | None, web_ui: bool) -> None:
    """Make one archive that serves models on machines without compiler and network.

    It has launcher, server, libraries and page, runs from any folder with the machine's own Python, and keeps what it
    makes where XDG says. Afterwards it is unpacked and tried.
    """
    home = find_home()
    started = time.monotonic()
    made = make_bundle(home, Wanted(backend, target, with_model, jobs, web_ui), into.absolute())
    needs = made.manifest
    console.say(
        f"made in {console.duration(time.monotonic() - started)}: {console.size(made.archive.stat().st_size)}, "
        f"unpacked {console.size(made.unpacked_bytes)}; it needs Python {needs.python}, glibc {needs.glibc} or newer"
    )
    model = default_model_path(home)
    try:
        with console.waiting("trying it in an empty folder"):
            tried = try_bundle(made, model if model.exists() else None)
    except UserError:
        made.archive.unlink(missing_ok=True)  # nobody should take it for one that works
        raise
    if tried.answer is None:
        console.say("its programs run; there was no model to ask: --with-model, or `llama-run --server` once, gets one")
    else:
        console.say(f"it answered a chat {tried.seconds:.1f} s after its start")
    click.echo(made.archive)
