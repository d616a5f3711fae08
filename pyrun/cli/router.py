"""Has `llama-run --server --all`: every model in models/, loaded when it is asked for."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click

from pyrun import console
from pyrun.build.builder import has_web_ui
from pyrun.cache.folder import make_cache
from pyrun.cli.backends import device_warning, settle_backend
from pyrun.cli.server import ServerOptions, ensure_built, supervise, use_runtime, warn_of_open_server
from pyrun.errors import UserError
from pyrun.home import Home
from pyrun.machine.describe import GIB, Machine
from pyrun.machine.names import AUTO
from pyrun.models.default import CHAT_TEMPLATE, SAMPLING, default_model_path
from pyrun.models.look import Seen, see_models
from pyrun.models.profile import choose_profile, read_wishes
from pyrun.server.address import choose_address, find_key
from pyrun.server.command import METADATA_VARIABLE, ServerSettings, choose_cache, server_command
from pyrun.server.log import OWN_FILE, OWN_FOLDER
from pyrun.server.port import check_port
from pyrun.server.router import MEMORY_FLAG, MEMORY_VARIABLE, NEED_FLAG, Preset, Room, at_most, presets_text
from pyrun.server.words import has_flag

UPSTREAM_AT_ONCE = 4  # what llama-server does by itself: without a profile, nobody knows what a model takes
OfModel = Callable[[str, ServerOptions], ServerOptions]


def run_router(home: Home, options: ServerOptions, of_model: OfModel) -> None:
    address = choose_address(options.host, options.port, options.extra, os.environ)
    cache = choose_cache(home.kv_cache, options.cache, options.no_cache, options.extra, os.environ)
    settled = settle_backend(home, options.backend, may_build=options.build)
    if options.backend == AUTO:
        console.say(f"backend: {settled.backend} ({settled.why})")
    options = replace(options, backend=settled.backend)
    presets, room = choose_presets(home, see_models(home), settled.machine, options, of_model, bool(cache))
    file = home.logs / f"models-{address.port}.ini"
    key = find_key(options.extra, os.environ)
    settings = ServerSettings(
        binary=home.server_binary(options.backend),
        model=file,
        address=address,
        cache=cache,
        web_page=None if has_web_ui(home, options.backend) else home.web_page,
        users_by_metadata=bool(address.open_hosts or key or os.environ.get(METADATA_VARIABLE)),
        extra=options.extra,
        room=room,
    )
    warn_of_open_server(address, key)
    if options.dry_run:
        click.echo(presets_text(presets))
        click.echo(shlex.join(server_command(settings)))
        return
    if cache:
        make_cache(Path(cache))
    for host in address.hosts:
        check_port(host, address.port)
    ensure_built(home, options, settled.snapshot)
    settings = replace(settings, web_page=None if has_web_ui(home, options.backend) else home.web_page)
    _write(file, presets_text(presets))
    names = ", ".join(preset.name for preset in presets)
    console.say(f'models: {names}; a request names its own: "model": "{presets[0].name}"')
    if warning := device_warning(settled):
        console.say(warning)
    use_runtime(settled.machine, options.backend)
    supervise(home, settings)


def choose_presets(
    home: Home, seen: list[Seen], machine: Machine, options: ServerOptions, of_model: OfModel, has_cache: bool
) -> tuple[list[Preset], Room]:
    """A preset for each model that can be served here, and what is loaded together; what is left out is said."""
    presets: list[Preset] = []
    shares: list[int] = []
    memory = 0
    said = options.extra
    for one in seen:
        name = Path(one.model.name).name
        own = of_model(name, replace(options, extra=()))
        try:
            if one.facts is None:
                raise one.problem or UserError("it cannot be read")
            words: tuple[str, ...] = ("--ctx-size", str(own.ctx)) if own.ctx else ()
            share = None
            if own.auto:
                wishes = read_wishes(own.ctx, (*own.extra, *options.extra), os.environ)
                profile = choose_profile(one.facts, machine, options.backend, wishes, has_ssd_cache=has_cache)
                share, memory = profile.share, profile.shared_memory
                words = (*words, *(word for setting in profile.settings for word in setting.flags))
                words = (NEED_FLAG, str(share), *words)
            if one.model.path == default_model_path(home):
                words = (*words, "--chat-template-file", str(CHAT_TEMPLATE), *(SAMPLING if own.auto else ()))
            preset = Preset(name, one.model.path, (*words, *own.extra))
            if not preset.is_writable:
                raise UserError("its name or settings have ; # or ] in them, which the router cannot read")
            presets.append(preset)
            said = (*said, *own.extra)
            shares += [] if share is None else [share]
        except UserError as error:
            console.say(f"left out: {name}: {error.message}")
    if not presets:
        raise UserError(f"no model in {home.models} can be served", "`llama-run --download` gets one")
    if len({preset.name for preset in presets}) < len(presets):
        raise UserError("two models have the same name, in different folders", "rename one of them")
    own_memory = has_flag(options.extra, MEMORY_FLAG)
    return presets, _choose_room(shares if len(shares) == len(presets) else [], memory, said, own_memory=own_memory)


def _choose_room(shares: list[int], memory: int, said: tuple[str, ...], *, own_memory: bool) -> Room:
    """`shares` is empty where nobody knows what some model takes. What the user has said the server knows better."""
    if not shares:
        console.say("memory: nobody knows what the models take: as many are loaded at once as --models-max says")
        return Room(UPSTREAM_AT_ONCE)
    if own_memory or os.environ.get(MEMORY_VARIABLE):
        return Room(len(shares))
    largest = f"the largest takes {max(shares) / GIB:.1f}"
    console.say(f"memory: {memory / GIB:.1f} GiB, {largest}: as many are loaded at once as fit")
    return Room(len(shares) if has_flag(said, NEED_FLAG) else at_most(shares, memory), memory)


def _write(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(mode=OWN_FOLDER, parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        file.chmod(OWN_FILE)
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror}", "check the disk, and who owns the folder") from error
