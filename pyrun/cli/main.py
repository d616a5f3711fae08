"""Has the root of the command tree, and is the one place where errors become messages and exit codes."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click
from click.core import ParameterSource

from pyrun.cli.invocation import Invocation
from pyrun.errors import UserError
from pyrun.extras import explained
from pyrun.home import find_home, version
from pyrun.machine.names import AUTO, BACKENDS
from pyrun.server.address import DEFAULT_HOST, DEFAULT_PORT, HOST_VARIABLE, PORT_VARIABLE

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

WIDTH = 110  # of what --help says, at most
SERVER_ONLY = (
    "--all",
    "--host",
    "--port",
    "--ctx",
    "--cache-ssd-shared",
    "--context-overflow",
    "--warm",
    "--with-tools",
    "--workers",
    "--no-build",
    "--noauto",
    "--print-profile",
    "--dry-run",
)


@dataclass(frozen=True)
class Served:
    """What --server asks for. Its value may be left out, and then no model is named."""

    model: str | None


class UnknownCommandError(click.UsageError):
    def __init__(self, words: list[str], reason: click.UsageError) -> None:
        super().__init__(reason.format_message(), reason.ctx)
        self.words = words  # the command and what follows it


class Root(click.Group):
    """Loads a command when it is asked for: the others would take longer to load than it takes to run, and building
    and looking at a machine work before the native module is built."""

    LATER: ClassVar = {
        "build": ("pyrun.cli.build", "build_command"),
        "bundle": ("pyrun.cli.bundle", "bundle_command"),
        "cache": ("pyrun.cli.cache", "cache_group"),
        "chat": ("pyrun.cli.chat", "chat_command"),
        "completion": ("pyrun.cli.completion", "completion_command"),
        "config": ("pyrun.cli.config", "config_group"),
        "connect": ("pyrun.cli.connect", "connect_command"),
        "doctor": ("pyrun.cli.doctor", "doctor_command"),
        "experts": ("pyrun.cli.experts", "experts_command"),
        "fleet": ("pyrun.cli.fleet", "fleet_group"),
        "install-link": ("pyrun.cli.install_link", "install_link_command"),
        "memory": ("pyrun.cli.memory", "memory_group"),
        "logs": ("pyrun.cli.background", "logs_command"),
        "providers": ("pyrun.cli.providers", "providers_group"),
        "service": ("pyrun.cli.service", "service_group"),
        "start": ("pyrun.cli.background", "start_command"),
        "status": ("pyrun.cli.background", "status_command"),
        "stop": ("pyrun.cli.background", "stop_command"),
        "tools": ("pyrun.cli.tools", "tools_group"),
        "top": ("pyrun.cli.top", "top_command"),
        "warm": ("pyrun.cli.warm", "warm_command"),
        "worker": ("pyrun.cli.worker", "worker_command"),
        "where": ("pyrun.cli.where", "where_command"),
    }
    # What --help says of them, without loading them; a test compares it with what they say themselves.
    BRIEFLY: ClassVar = {
        "build": "Build llama-server from the pinned, patched llama.cpp.",
        "bundle": "Make one archive that serves models on machines without compiler and network.",
        "cache": "Show, check and clean the stored state.",
        "chat": "Talk to a model, with tools, memory and endless history.",
        "completion": "Print what makes the TAB key complete commands, flags, models, conversations and backends.",
        "config": "Show the settings of llama-run.toml, and an example of it.",
        "connect": "Make a coding agent use the running server.",
        "doctor": "Show what this machine is, how that was found, and what is missing for each backend.",
        "experts": "Show which experts of a mixture-of-experts model work, layer by layer.",
        "fleet": "Run several servers of one model: set up a router, and see them all.",
        "install-link": "Make `llama-run` work from every folder, by a link to this clone or bundle.",
        "memory": "Search what left a conversation, and keep facts.",
        "logs": "Show what a server in the background says.",
        "providers": "Set up models that others serve, or another server here does.",
        "service": "Run the server as a systemd user service.",
        "start": "Start a server in the background: as --server does, but it stays when the terminal goes.",
        "status": "Show the servers that `llama-run start` started and that still run.",
        "stop": "Stop a server that `llama-run start` started.",
        "tools": "Serve tools to agents, by MCP over stdin and stdout: files, HTTP, JSON, memory, other models, "
        "commands.",
        "top": "Show what a running server does now, and its last requests.",
        "warm": "Prepare prompts on a running server, so that whatever follows them begins at once.",
        "worker": "Lend this machine to a model that is too large for one.",
        "where": "Show where models, stored state, settings, builds and logs are.",
    }

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted([*super().list_commands(context), *self.LATER])

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name in self.LATER:
            module, attribute = self.LATER[name]
            command: click.Command = getattr(importlib.import_module(module), attribute)
            return command
        return super().get_command(context, name)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._briefly(context, name)) for name in self.list_commands(context)])

    def _briefly(self, context: click.Context, name: str) -> str:
        if name in self.BRIEFLY:
            return str(self.BRIEFLY[name])
        command = self.get_command(context, name)
        return command.get_short_help_str(limit=WIDTH) if command else ""

    def shell_complete(self, context: click.Context, start: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        names = [name for name in self.list_commands(context) if name.startswith(start)]
        flags = click.Command.shell_complete(self, context, start)
        return [*(CompletionItem(name, help=self._briefly(context, name)) for name in names), *flags]

    def resolve_command(
        self, context: click.Context, words: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            name, command, rest = super().resolve_command(context, words)
        except click.NoSuchOption:
            raise
        except click.UsageError as error:
            raise UnknownCommandError(words, error) from error
        invocation = context.find_object(Invocation)
        if name and command and invocation and name in invocation.settings:
            from pyrun.cli.defaults import command_defaults
            from pyrun.settings import table_of

            table = table_of(invocation.settings, name, invocation.file)
            defaults = command_defaults(command, table, f"{invocation.file}: [{name}]", invocation.file)
            context.default_map = {**(context.default_map or {}), name: defaults}
        return name, command, rest


@click.group(
    cls=Root,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDTH},
    epilog="Everything after `--` goes to llama-server as it is: llama-run --server -- --temp 0.2",
)
@click.option(
    "--server",
    "served",
    is_flag=False,
    flag_value="",
    callback=lambda context, option, name: None if name is None else Served(name or None),
    metavar="[MODEL]",
    shell_complete=lambda context, option, start: _complete_model(context, option, start),
    help="Serve MODEL: a path, a name in models/, or a unique part of one; of several, with commas between, each is "
    "loaded when it is asked for. It may be left out where there is only one, or none: then a small built-in one is "
    "taken.",
)
@click.option(
    "--all", "everything", is_flag=True, help="With --server: all models in models/, each loaded when it is asked for."
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
    type=click.Choice([AUTO, *BACKENDS]),
    default=AUTO,
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
@click.option(
    "--cache-ssd-shared",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="A folder that several servers share: what one has evaluated the others need not. Whoever can write there can "
    "put words into prompts.",
)
@click.option(
    "--context-overflow",
    type=click.Choice(["error", "evict"]),
    help="What becomes of a chat that no longer fits: an error (the default), or its oldest messages go to the memory.",
)
@click.option(
    "--warm",
    metavar="FILE",
    help="Prepare the prompts of this file after the start, as `llama-run warm` does: its path, or its name in "
    "[warm-files] of llama-run.toml.",
)
@click.option(
    "--with-tools",
    is_flag=True,
    help="Give the web page the tools of `llama-run tools`: files below this folder, HTTP, memory. Local pages only.",
)
@click.option(
    "--workers",
    metavar="HOST:PORT,...",
    help="Split the model over these machines as well, by what fits; `llama-run worker` runs on each: docs/fleet.md.",
)
@click.option("--no-build", is_flag=True, help="Start what is built, without looking whether it is up to date.")
@click.option("--noauto", is_flag=True, help="Leave every setting to you and llama-server's defaults; refuse nothing.")
@click.option("--print-profile", is_flag=True, help="Explain the settings that --server would choose, and stop.")
@click.option("--dry-run", is_flag=True, help="Print the server command and stop.")
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda context, option, asked: _show_version(context) if asked else None,
    help="Show the version and exit.",
)
@click.pass_context
def cli(
    context: click.Context,
    served: Served | None,
    everything: bool,
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
    cache_ssd_shared: Path | None,
    context_overflow: str | None,
    warm: str | None,
    with_tools: bool,
    workers: str | None,
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
    if served is None and extra.extra and context.invoked_subcommand not in ("start", "chat"):
        raise click.UsageError("words behind `--` are for llama-server; they go with --server, start and chat only")
    if context.invoked_subcommand is not None:
        return
    if ("--quant" in given or "--mmproj" in given) and download is None:
        raise click.UsageError("--quant and --mmproj go with --download")
    if download is not None and (served is not None or list_models or list_backends):
        raise click.UsageError("--download goes alone; start the model afterwards, with --server")
    if served is not None and (list_models or list_backends):
        raise click.UsageError("--list-models and --list-backends do not go with --server")
    if served is None and (stray := [flag for flag in given if flag in SERVER_ONLY]):
        raise click.UsageError(f"{stray[0]} goes with --server")
    if everything and served and served.model:
        raise click.UsageError("--all serves all models: name none, or name some with commas between, without --all")
    if print_profile and noauto:
        raise click.UsageError("--noauto leaves no profile to print")
    if list_models or list_backends:
        home = find_home()
        if list_models:
            from pyrun.cli.defaults import server_words
            from pyrun.cli.models import print_models
            from pyrun.server.command import CACHE_FLAG, choose_cache
            from pyrun.server.words import value_of

            set_words = tuple(server_words(extra.settings, extra.file))
            cache = choose_cache(home.kv_cache, cache_ssd, no_cache_ssd, set_words, os.environ)
            print_models(home, backend, cache or value_of(set_words, CACHE_FLAG) or None)
        if list_models and list_backends:
            click.echo()
        if list_backends:
            from pyrun.cli.backends import print_backends

            print_backends(home)
    elif download is not None:
        from pyrun.cli.download import run_download  # its libraries take longer to load than all others together

        run_download(find_home(), download, quant, mmproj)
    elif served is not None:
        from pyrun.cli.defaults import not_overruled, server_model, server_words
        from pyrun.cli.model_settings import with_model_settings
        from pyrun.cli.server import ServerOptions, run_server
        from pyrun.models.find import names_in
        from pyrun.workers.endpoint import read_workers

        if "--cache-ssd" in given and "--no-cache-ssd" in given:
            raise click.UsageError("--cache-ssd and --no-cache-ssd do not go together")
        words = not_overruled(server_words(extra.settings, extra.file), given)
        options = ServerOptions(
            model=served.model or server_model(extra.settings, extra.file),
            backend=backend,
            host=host,
            port=port,
            ctx=ctx,
            # The file may turn the cache off; a folder that is typed counts more.
            cache=None if no_cache_ssd and "--cache-ssd" not in given else cache_ssd,
            no_cache=no_cache_ssd and "--cache-ssd" not in given,
            build=not no_build,
            auto=not noauto,
            print_profile=print_profile,
            dry_run=dry_run,
            extra=(*words, *extra.extra),
            n_set=len(words),
            shared=cache_ssd_shared,
            overflow=context_overflow,
            with_tools=with_tools,
            warm=warm,
            workers=read_workers(workers) if workers else (),
        )

        def of_model(name: str, options: ServerOptions) -> ServerOptions:
            return with_model_settings(cli, options, name, extra.settings, extra.file, given, os.environ)

        home = find_home()
        names = names_in(home, options.model) if options.model and not everything else []
        if everything or len(names) > 1:
            from pyrun.cli.router import run_router

            if print_profile or workers:
                raise click.UsageError("--print-profile and --workers are for one model: name one, without --all")
            run_router(home, options, of_model, names)
        else:
            run_server(home, replace(options, model=names[0] if names else None), of_model)
    elif given:
        raise click.UsageError(f"{given[0]} goes with --server")
    else:
        click.echo(context.get_help())


def _given(context: click.Context) -> list[str]:
    """Finds the flags that stand on the command line."""
    told = ParameterSource.COMMANDLINE
    return [p.opts[0] for p in context.command.params if p.name and context.get_parameter_source(p.name) is told]


def _complete_model(context: click.Context, option: click.Parameter, start: str) -> list[CompletionItem]:
    from pyrun.cli.completion import complete_model

    return complete_model(context, option, start)


def _show_version(context: click.Context) -> None:
    click.echo(f"llama-run, version {version()}")
    context.exit()


def _hint(error: click.ClickException, words: list[str]) -> str | None:
    from pyrun.cli.suggest import for_command, for_option

    if isinstance(error, UnknownCommandError):
        return for_command(error.words, list(Root.LATER))
    if isinstance(error, click.NoSuchOption):
        return for_option(words, error.option_name)
    return None


def _show(error: click.ClickException, words: list[str]) -> None:
    hint = _hint(error, words)
    if hint and isinstance(error, click.NoSuchOption) and error.possibilities == ["--help"]:
        error = click.UsageError(error.message, error.ctx)  # --temp is like --help in its letters only
    error.show()
    if hint:
        from pyrun import console

        console.show_hint(hint)


def _read_settings(words: list[str], extra: tuple[str, ...]) -> Invocation:
    """Help is given whatever is in the file."""
    if not words or {"-h", "--help", "--version"} & set(words):
        return Invocation(extra)
    try:
        file = find_home().settings
        is_there = file.exists()
    except (UserError, OSError):
        return Invocation(extra)  # commands that need the folder say what is wrong with it
    if not is_there:
        return Invocation(extra)
    from pyrun.cli.defaults import FREE, ROOT_TABLES
    from pyrun.settings import check_names, read_settings

    settings = read_settings(file)
    check_names(settings, [*ROOT_TABLES, *FREE, *Root.LATER], str(file), "table")
    return Invocation(extra, settings, file)


def _root_defaults(invocation: Invocation) -> dict[str, Any]:
    if not invocation.settings:
        return {}
    from pyrun.cli.defaults import root_defaults

    return root_defaults(cli, invocation.settings, invocation.file, os.environ)


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script enters here."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    cut = words.index("--") if "--" in words else len(words)
    own, extra = words[:cut], tuple(words[cut + 1 :])
    # A polite kill ends like Ctrl-C: whatever was started is stopped first.
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    try:
        invocation = _read_settings(own, extra)
        defaults = _root_defaults(invocation)
        cli.main(own, prog_name="llama-run", standalone_mode=False, obj=invocation, default_map=defaults)
    except (UserError, ImportError) as error:
        known = explained(error)
        from pyrun import console

        console.show_error(known)
        sys.exit(known.exit_code)
    except click.ClickException as error:
        _show(error, own)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        from pyrun import console

        console.say("interrupted")
        sys.exit(130)
