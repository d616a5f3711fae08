"""Has `llama-run where`, which says where everything is."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from pyrun import console
from pyrun.cache.usual import usual_cache
from pyrun.home import BundledHome, Home, InstalledHome, find_home


@click.command("where")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
def where_command(as_json: bool) -> None:
    """Show where models, stored state, settings, builds and logs are.

    In a clone all of it is in the clone. Installed as a package, or run from a bundle, it is where XDG says, and
    upgrading keeps it.
    """
    home = find_home()
    found = places(home)
    if as_json:
        click.echo(json.dumps({name: str(path) for name, path in found.items()}, indent=2))
        return
    for line in console.columns([(name, console.printable(str(path))) for name, path in found.items()]):
        click.echo(line)
    console.say(_kind(home))


def _kind(home: Home) -> str:
    if isinstance(home, BundledHome):
        return f"run from the bundle {home.folder}"
    return "installed as a package" if isinstance(home, InstalledHome) else f"run from the clone {home.root}"


def places(home: Home) -> dict[str, Path]:
    return {
        "settings": home.settings,
        "models": home.models,
        "kv-cache": usual_cache(home, os.environ),
        "memory": home.memory,
        "logs": home.logs,
        "source": home.source,
        "builds": home.build(""),
        "deps": home.deps,
        "patches": home.patches,
        "kernels": home.kernels,
    }
