"""Has `llama-run install-link`, which makes the command of a clone known to the shell."""

from __future__ import annotations

import os
from pathlib import Path

import click

from pyrun import console
from pyrun.errors import UserError
from pyrun.home import CODE, is_bundle, is_clone


@click.command("install-link")
@click.option(
    "--into",
    "folder",
    metavar="DIR",
    type=click.Path(path_type=Path),
    default=Path("~/.local/bin"),
    show_default=True,
    help="A folder that the shell finds commands in.",
)
@click.option("--remove", is_flag=True, help="Take the link away again.")
def install_link_command(folder: Path, remove: bool) -> None:
    """Make `llama-run` work from every folder, by a link to this clone or bundle."""
    if not is_clone() and not is_bundle():
        raise UserError("llama-run is installed as a package, with a command of its own", "nothing is to be done")
    link, program = folder.expanduser() / "llama-run", (CODE if is_clone() else CODE.parent) / "llama-run"
    is_ours = link.is_symlink() and link.resolve() == program
    if not is_ours and (link.exists() or link.is_symlink()):
        raise UserError(f"{link} is there already, and not a link to {program}", "remove it, or choose another --into")
    try:
        if remove:
            link.unlink(missing_ok=True)
        elif not is_ours:
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(program)
    except OSError as error:
        raise UserError(f"cannot change {link}: {error.strerror}", "choose another folder with --into DIR") from error
    console.say(f"{link} is removed" if remove else f"{link} leads to {program}")
    if not remove and str(link.parent) not in os.environ.get("PATH", "").split(os.pathsep):
        console.say(f'{link.parent} is not on your PATH; add to ~/.profile: export PATH="{link.parent}:$PATH"')
