"""Has `llama-run service`: a server that systemd starts with the user, or with the machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import click

from pyrun import console
from pyrun.cache.usual import named_caches
from pyrun.cli.background import own_command, server_words
from pyrun.cli.completion import complete_model
from pyrun.errors import UserError
from pyrun.home import Home, InstalledHome, find_home
from pyrun.models.find import find_model, names_in
from pyrun.service.unit import MARK, NAME, unit

WHY = f"`journalctl --user -u {NAME}` says why"
LOOKS, LOOK_SECONDS = 4, 0.5
# What the shell says is not known to systemd.
KEPT = (
    "LLAMA_RUN_HOME",
    "LLAMA_RUN_PYTHON",
    "XDG_DATA_HOME",
    "XDG_CONFIG_HOME",
    "XDG_STATE_HOME",
    "XDG_CACHE_HOME",
)


@click.group("service")
def service_group() -> None:
    """Run the server as a systemd user service."""


@service_group.command("install")
@click.argument("model", required=False, shell_complete=complete_model)
@click.option("--all", "everything", is_flag=True, help="Serve all models in models/, each when it is asked for.")
@click.option("--print", "only_print", is_flag=True, help="Print the unit, and write nothing.")
def install_command(model: str | None, everything: bool, only_print: bool) -> None:
    """Write the unit, and start it: now, and whenever you log in. Settings come from llama-run.toml."""
    home = find_home()
    writable = [*_writable(home), *named_caches(home)]
    if model and not everything:
        model = _from_anywhere(home, model)
    program = [*own_command(), *server_words(model, everything)]
    text = unit(program, writable, {name: os.environ[name] for name in KEPT if os.environ.get(name)})
    if only_print:
        click.echo(text, nl=False)
        return
    path = unit_path()
    _check_ours(path)
    try:
        for folder in writable:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {error.filename}: {error.strerror}", "check who owns it") from error
    console.say(f"{path} is written")
    if not _systemctl("daemon-reload"):
        raise UserError("systemd does not answer for this user", "log in anew, or use `llama-run start` instead")
    _systemctl("reset-failed", NAME, loud=False)  # One that crashed too often would not be started.
    # One that runs already goes on with the unit as it was before, unless it is started anew.
    console.say("starting it; one that runs already saves its state first")
    if not (_systemctl("enable", NAME) and _systemctl("restart", NAME)):
        raise UserError("the service does not start", WHY)
    if not _stays():
        raise UserError("the service was started, and has ended", WHY)
    console.say("`llama-run service status` shows it; without a login it starts after: loginctl enable-linger")


def _from_anywhere(home: Home, model: str) -> str:
    """systemd starts it in another folder, where names are found and relative paths are not."""
    found = [(name, find_model(home, name).path) for name in names_in(home, model)]
    return ",".join(str(path) if Path(name).expanduser().is_file() else name for name, path in found)


def _stays() -> bool:
    """systemd is content once the program runs; a port that is taken or a wrong setting ends it a moment later."""
    for _ in range(LOOKS):
        time.sleep(LOOK_SECONDS)
        if not _systemctl("is-active", "--quiet", NAME, loud=False):
            return False
    return True


@service_group.command("remove")
def remove_command() -> None:
    """Stop the service, and remove its unit. Models and stored state stay."""
    path = unit_path()
    if not path.exists():
        raise UserError(f"there is no {path}", "`llama-run service install` writes it")
    _check_ours(path)
    _systemctl("disable", "--now", NAME)
    path.unlink()
    _systemctl("daemon-reload")
    console.say(f"{path} is removed")


@service_group.command("status")
def status_command() -> None:
    """Show what systemd says of the service."""
    if not unit_path().exists():
        raise UserError("no service is installed", "`llama-run service install` installs it")
    if shutil.which("systemctl") is None:
        raise UserError("there is no systemd here", "use `llama-run start` instead")
    raise SystemExit(subprocess.run(["systemctl", "--user", "--no-pager", "status", NAME], check=False).returncode)


def unit_path() -> Path:
    folder = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    return (folder if folder.is_absolute() else Path.home() / ".config") / "systemd" / "user" / NAME


def _writable(home: Home) -> list[Path]:
    return [home.root, home.state, home.cache] if isinstance(home, InstalledHome) else [home.root]


def _check_ours(path: Path) -> None:
    if path.exists() and not path.read_text(encoding="utf-8", errors="replace").startswith(MARK):
        raise UserError(f"{path} is not one that llama-run wrote", "move it away first")


def _systemctl(*words: str, loud: bool = True) -> bool:
    if shutil.which("systemctl") is None:
        return False
    result = subprocess.run(["systemctl", "--user", *words], capture_output=True, text=True, check=False)
    if loud and result.returncode != 0 and result.stderr.strip():
        console.say(result.stderr.strip())
    return result.returncode == 0
