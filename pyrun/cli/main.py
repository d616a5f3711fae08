"""Has the root of the command tree, and is the one place where errors become messages and exit codes."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import click
from click.core import ParameterSource

from pyrun import console
from pyrun.cli.backends import CHOICES, print_backends
from pyrun.cli.build import build_command
from pyrun.cli.connect import connect_command
from pyrun.cli.doctor import doctor_command
from pyrun.cli.experts import experts_command
from pyrun.cli.suggest import for_command, for_option
from pyrun.cli.warm import warm_command
from pyrun.errors import UserError
from pyrun.home import find_home, version
from pyrun.server.address import DEFAULT_HOST, DEFAULT_PORT, HOST_VARIABLE, PORT_VARIABLE
from pyrun.server.command import choose_cache

SERVER_ONLY = ("--host", "--port", "--ctx", "--no-build", "--noauto", "--print-profile", "--dry-run")


@dataclass(frozen=True)
class Invocation:
    """What click does not see: the words behind `--`, which belong to llama-server."""

    extra: tuple[str, ...] = ()


@dataclass(frozen=True)
class Served:
    """What --server asks for. Its value may be left out, and then no model is named."""

    model: str | None


class UnknownCommandError(click.UsageError):
    def __init__(self, words: list[str], reason: click.UsageError) -> None:
        super().__init__(reason.format_message(), reason.ctx)
        self.words = words  # the command and what follows it


class Root(click.Group):
    """Loads some commands when they are asked for: building and looking at a machine work before the native module is
    built."""

    LATER: ClassVar = {
        "cache": ("pyrun.cli.cache", "cache_group"),
        "memory": ("pyrun.cli.memory", "memory_group"),
        "tools": ("pyrun.cli.tools", "tools_group"),
    }

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted([*super().list_commands(context), *self.LATER])

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name in self.LATER:
            module, attribute = self.LATER[name]
            command: click.Command = getattr(importlib.import_module(module), attribute)
            return command
        return super().get_command(context, name)

    def resolve_command(
        self, context: click.Context, words: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(context, words)
        except click.NoSuchOption:
            raise
        except click.UsageError as error:
            raise UnknownCommandError(words, error) from error


@click.group(
    cls=Root,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Everything after `--` goes to llama-server as it is: llama-run --server -- --temp 0.2",
)
@click.option(
    "--server",
    "served",
    is_flag=False,
    flag_value="",
    callback=lambda context, option, name: None if name is None else Served(name or None),
    metavar="[MODEL]",
    help="Serve MODEL: a path, a name in models/, or a unique part of one. It may be left out where there is only one, "
    "or none: then a small built-in one is taken.",
)
@click.option(
    "--list-models",
    is_flag=True,
    help="List the models in models/: what they are, how many conversations are stored, and whether they fit.",
)
@click.option("--list-backends", is_flag=True, help="List the backends: built, buildable, or what they lack.")
@click.option(
    "--download",
    metavar="NAME",
    help="Download a model into models/. NAME: OWNER/REPOSITORY, with :QUANT or without, or words to search for.",
)
@click.option("--quant", metavar="Q", help="With --download: the quantisation, such as Q4_K_M, or a file's name.")
@click.option("--mmproj", is_flag=True, help="With --download: also the projector that lets the model see images.")
@click.option(
    "--backend",
    type=click.Choice(CHOICES),
    default="auto",
    show_default=True,
    help="What to run on. auto: the best for this machine that is built or can be.",
)
@click.option("--host", help=f"Address to listen on (default: {HOST_VARIABLE}, or {DEFAULT_HOST}).")
@click.option(
    "--port", type=click.IntRange(1, 65535), help=f"Port to listen on (default: {PORT_VARIABLE}, or {DEFAULT_PORT})."
)
@click.option("--ctx", type=click.IntRange(min=1), help="Context size in tokens (default: what suits it).")
@click.option(
    "--cache-ssd",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Keep the state of prompts in this folder, across restarts (default: kv-cache/ in the clone). It holds what "
    "the prompts say.",
)
@click.option("--no-cache-ssd", is_flag=True, help="Keep no state on disk: RAM only, as upstream does.")
@click.option("--no-build", is_flag=True, help="Start what is built, without looking whether it is up to date.")
@click.option("--noauto", is_flag=True, help="Leave every setting to you and llama-server's defaults; refuse nothing.")
@click.option("--print-profile", is_flag=True, help="Explain the settings that --server would choose, and stop.")
@click.option("--dry-run", is_flag=True, help="Print the server command and stop.")
@click.version_option(version(), prog_name="llama-run")
@click.pass_context
def cli(
    context: click.Context,
    served: Served | None,
    list_models: bool,
    list_backends: bool,
    download: str | None,
    quant: str | None,
    mmproj: bool,
    backend: str,
    host: str | None,
    port: int | None,
    ctx: int | None,
    cache_ssd: Path | None,
    no_cache_ssd: bool,
    no_build: bool,
    noauto: bool,
    print_profile: bool,
    dry_run: bool,
) -> None:
    """A local LLM server whose prompt is never evaluated twice."""
    extra = context.find_object(Invocation) or Invocation()
    given = _given(context)
    if context.invoked_subcommand is not None and given:
        raise click.UsageError(f"{given[0]} does not go with `{context.invoked_subcommand}`")
    if served is None and extra.extra:
        raise click.UsageError("words behind `--` are for llama-server; they go with --server only")
    if context.invoked_subcommand is not None:
        return
    if (quant is not None or mmproj) and download is None:
        raise click.UsageError("--quant and --mmproj go with --download")
    if download is not None and (served is not None or list_models or list_backends):
        raise click.UsageError("--download goes alone; start the model afterwards, with --server")
    if served is not None and (list_models or list_backends):
        raise click.UsageError("--list-models and --list-backends do not go with --server")
    if served is None and (stray := [flag for flag in given if flag in SERVER_ONLY]):
        raise click.UsageError(f"{stray[0]} goes with --server")
    if print_profile and noauto:
        raise click.UsageError("--noauto leaves no profile to print")
    if list_models or list_backends:
        home = find_home()
        if list_models:
            from pyrun.cli.models import print_models

            print_models(home, backend, choose_cache(home.kv_cache, cache_ssd, no_cache_ssd, (), os.environ))
        if list_models and list_backends:
            click.echo()
        if list_backends:
            print_backends(home)
    elif download is not None:
        from pyrun.cli.download import run_download  # its libraries take longer to load than all others together

        run_download(find_home(), download, quant, mmproj)
    elif served is not None:
        from pyrun.cli.server import ServerOptions, run_server

        if cache_ssd is not None and no_cache_ssd:
            raise click.UsageError("--cache-ssd and --no-cache-ssd do not go together")
        options = ServerOptions(
            model=served.model,
            backend=backend,
            host=host,
            port=port,
            ctx=ctx,
            cache=cache_ssd,
            no_cache=no_cache_ssd,
            build=not no_build,
            auto=not noauto,
            print_profile=print_profile,
            dry_run=dry_run,
            extra=extra.extra,
        )
        run_server(find_home(), options)
    elif given:
        raise click.UsageError(f"{given[0]} goes with --server")
    else:
        click.echo(context.get_help())


def _given(context: click.Context) -> list[str]:
    """Finds the flags that stand on the command line."""
    told = ParameterSource.COMMANDLINE
    return [p.opts[0] for p in context.command.params if p.name and context.get_parameter_source(p.name) is told]


cli.add_command(build_command)
cli.add_command(connect_command)
cli.add_command(doctor_command)
cli.add_command(experts_command)
cli.add_command(warm_command)


def _hint(error: click.ClickException, words: list[str]) -> str | None:
    if isinstance(error, UnknownCommandError):
        return for_command(error.words)
    if isinstance(error, click.NoSuchOption):
        return for_option(words, error.option_name)
    return None


def _show(error: click.ClickException, words: list[str]) -> None:
    hint = _hint(error, words)
    if hint and isinstance(error, click.NoSuchOption) and error.possibilities == ["--help"]:
        error = click.UsageError(error.message, error.ctx)  # --temp is like --help in its letters only
    error.show()
    if hint:
        console.show_hint(hint)


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script enters here."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    cut = words.index("--") if "--" in words else len(words)
    own, extra = words[:cut], tuple(words[cut + 1 :])
    # A polite kill ends like Ctrl-C: whatever was started is stopped first.
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    try:
        cli.main(own, prog_name="llama-run", standalone_mode=False, obj=Invocation(extra))
    except UserError as error:
        console.show_error(error)
        sys.exit(error.exit_code)
    except ImportError as error:
        if "_kernels" not in str(error):
            raise
        console.show_error(UserError("the native module is not built", "run ./llama-run from the clone: it builds it"))
        sys.exit(1)
    except click.ClickException as error:
        _show(error, own)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        console.say("interrupted")
        sys.exit(130)
