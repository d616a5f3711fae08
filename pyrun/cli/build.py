"""`llama-run build`."""

from __future__ import annotations

import click

from pyrun import console
from pyrun.build.builder import BuildRequest, build
from pyrun.build.lock import build_lock
from pyrun.errors import UserError
from pyrun.home import BACKENDS, Home, find_home
from pyrun.upstream import source


@click.command("build")
@click.option("--backend", type=click.Choice(BACKENDS), default="cpu", show_default=True, help="What to build for.")
@click.option("--jobs", "-j", type=click.IntRange(min=1), help="Parallel compilers (default: one per core).")
@click.option("--clean", is_flag=True, help="Throw source and build away and start afresh.")
@click.option(
    "--source",
    "origin",
    default="pypi",
    show_default=True,
    metavar="pypi|git|PATH",
    help="Where llama.cpp comes from: the pinned package, the pinned commit, or a checkout of yours (left untouched).",
)
@click.option("--web-ui/--no-web-ui", default=True, help="Build upstream's web page, where npm is (default: yes).")
@click.option(
    "--export-patches",
    is_flag=True,
    help="Write edits in llama.cpp/source back to patches/, and build nothing.",
)
@click.option(
    "--into",
    metavar="TEXT",
    help="With --export-patches: the patch (a part of its subject) that takes edits.",
)
def build_command(
    backend: str,
    jobs: int | None,
    clean: bool,
    origin: str,
    web_ui: bool,
    export_patches: bool,
    into: str | None,
) -> None:
    """Build llama-server from the pinned, patched llama.cpp.

    Only what is out of date is built. An interrupted build goes on where it stopped.
    """
    home = find_home()
    if into and not export_patches:
        raise click.UsageError("--into goes with --export-patches")
    if export_patches:
        _export(home, into)
        return
    if clean and source.has_edits(home):
        _confirm_discard(home)
    result = build(home, BuildRequest(backend, jobs, clean, origin, web_ui))
    if result.changed:
        console.say(f"built in {console.duration(result.seconds)}")
    else:
        console.say("nothing to build")
    click.echo(result.server)


def _export(home: Home, into: str | None) -> None:
    with build_lock(home.build_lock):
        changed = source.export_patches(home, into)
    for name in changed:
        click.echo(name)
    console.say(f"{len(changed)} patches changed" if changed else "the patches already say what the source says")


def _confirm_discard(home: Home) -> None:
    message = f"{home.source} has edits that are in no patch"
    if not console.is_interactive():
        raise UserError(f"{message}; --clean would lose them", "`llama-run build --export-patches` saves them first")
    if not click.confirm(f"{message}. Throw them away?", err=True):
        raise click.Abort
