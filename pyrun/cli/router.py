"""Has `llama-run --server --all`: every model in models/, or those that are named, loaded when it is asked for."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from pyrun import console
from pyrun.build.builder import has_web_ui
from pyrun.cache.folder import make_cache
from pyrun.cli.backends import device_warning, settle_backend
from pyrun.cli.server import (
    ServerOptions,
    ensure_built,
    offer_tools,
    settings_for,
    supervise,
    tools_root,
    use_runtime,
    warn_of_open_server,
)
from pyrun.errors import UserError
from pyrun.home import Home
from pyrun.machine.describe import GIB, Machine
from pyrun.machine.names import AUTO
from pyrun.models.default import CHAT_TEMPLATE, SAMPLING, default_model_path
from pyrun.models.find import find_model, how_to_get_one
from pyrun.models.look import Seen, see, see_models
from pyrun.models.profile import SPELLINGS, choose_profile, read_wishes
from pyrun.server.address import choose_address, find_key
from pyrun.server.command import CACHE_FLAG, choose_cache, server_command, words_of_models
from pyrun.server.log import OWN_FILE, OWN_FOLDER
from pyrun.server.port import check_port
from pyrun.server.router import (
    MEMORY_FLAG,
    MEMORY_VARIABLE,
    NEED_FLAG,
    Preset,
    Room,
    at_most,
    is_of_router,
    is_writable,
    presets_text,
)
from pyrun.server.words import grouped, has_flag, is_flag, spelled, value_of

UPSTREAM_AT_ONCE = 4  # what llama-server does by itself: without a profile, nobody knows what a model takes
OfModel = Callable[[str, ServerOptions], ServerOptions]


@dataclass(frozen=True)
class Chosen:
    """What is served, and how."""

    presets: tuple[Preset, ...]
    of_all: tuple[str, ...]  # words for models that say nothing else
    room: Room
    extra: tuple[str, ...]  # words for the router, which overrule every model's


def run_router(home: Home, options: ServerOptions, of_model: OfModel, names: Sequence[str] = ()) -> None:
    """`names` are the models to serve; none means all of them."""
    address = choose_address(options.host, options.port, options.extra, os.environ)
    tools = tools_root(home, address, options)
    settled = settle_backend(home, options.backend, may_build=options.build)
    if options.backend == AUTO:
        console.say(f"backend: {settled.backend} ({settled.why})")
    options = replace(options, backend=settled.backend)
    named = {model.path: model for model in (find_model(home, name) for name in names)}
    seen = [see(model) for model in named.values()] or see_models(home)
    chosen = choose_presets(home, seen, settled.machine, options, of_model, is_named=bool(named))
    file = home.logs / f"models-{address.port}.ini"
    options = replace(options, extra=chosen.extra)
    settings = replace(settings_for(home, file, address, options), room=chosen.room)
    warn_of_open_server(address, find_key(options.extra, os.environ))
    ours = words_of_models(settings)
    if not is_writable(ours):
        raise UserError(f"a folder's name has ; # or ] in it, which the router cannot read: {' '.join(ours)}")
    presets = presets_text(chosen.presets, (*ours, *chosen.of_all))
    if options.dry_run:
        click.echo(presets)
        click.echo(shlex.join(server_command(settings)))
        return
    for cache in {preset.cache for preset in chosen.presets if preset.cache}:
        make_cache(Path(cache))
    for host in address.hosts:
        check_port(host, address.port)
    ensure_built(home, options, settled.snapshot)
    settings = replace(settings, web_page=None if has_web_ui(home, options.backend) else home.web_page)
    _write(file, presets)
    served = ", ".join(preset.name for preset in chosen.presets)
    console.say(f'models: {served}; a request names its own: "model": "{chosen.presets[0].name}"')
    if warning := device_warning(settled):
        console.say(warning)
    use_runtime(settled.machine, options.backend)
    words_of_each = (word for preset in chosen.presets for word in preset.words)
    offer_tools(settings, tools, (*server_command(settings), *ours, *chosen.of_all, *words_of_each))
    supervise(home, settings, presets=chosen.presets)


def choose_presets(
    home: Home, seen: list[Seen], machine: Machine, options: ServerOptions, of_model: OfModel, *, is_named: bool = False
) -> Chosen:
    """A preset for each model that can be served here, and what is loaded together. What is left out is said, unless
    somebody named it."""
    # What stands on the router's command line overrules every preset: that is for what was typed.
    groups = grouped(options.extra[: options.n_set])
    of_router = [group for group in groups if is_of_router(group[0]) or not is_writable(group)]
    for_models = tuple(word for group in groups if group not in of_router for word in group)
    typed = (*(word for group in of_router for word in group), *options.extra[options.n_set :])
    # Models that upstream has downloaded have no preset of ours.
    of_all = (*_cache_words(home, options, (*for_models, *typed)), *for_models)
    presets: list[Preset] = []
    shares: list[int] = []
    memory = 0
    said = (*for_models, *typed)
    for one in seen:
        name = Path(one.model.name).name
        wanted = of_model(name, replace(options, extra=(), n_set=0))
        words = tuple(word for group in grouped(wanted.extra) if not is_of_router(group[0]) for word in group)
        _say_ignored(name, wanted, options)
        try:
            if one.facts is None:
                raise one.problem or UserError("it cannot be read")
            everything = (*for_models, *words, *typed)
            flags = _cache_words(home, wanted, everything)
            cache = value_of((*flags, *everything), CACHE_FLAG)
            flags = (*flags, "--ctx-size", str(wanted.ctx)) if wanted.ctx else flags
            share = None
            if wanted.auto:
                wishes = read_wishes(wanted.ctx, everything, os.environ)
                profile = choose_profile(one.facts, machine, options.backend, wishes, has_ssd_cache=bool(cache))
                share, memory = profile.share, profile.shared_memory
                flags = (*flags, *(word for setting in profile.settings for word in setting.flags))
                flags = (NEED_FLAG, str(share), *flags)
            if one.model.path == default_model_path(home):
                flags = (*flags, "--chat-template-file", str(CHAT_TEMPLATE), *(SAMPLING if wanted.auto else ()))
            preset = Preset(name, one.model.path, (*_unsaid(flags, everything), *words), cache or None)
            if not preset.is_writable:
                raise UserError("its name or settings have ; # or ] in them, which the router cannot read")
            presets.append(preset)
            said = (*said, *words)
            shares += [] if share is None else [share]
        except UserError as error:
            if is_named:
                raise UserError(f"{name}: {error.message}", error.hint) from error
            console.say(f"left out: {name}: {error.message}")
    if not presets:
        raise UserError(f"no model in {home.models} can be served", how_to_get_one(home))
    if len({preset.name for preset in presets}) < len(presets):
        raise UserError("two models have the same name, in different folders", "rename one of them")
    own_memory = has_flag(typed, MEMORY_FLAG)
    room = _choose_room(shares if len(shares) == len(presets) else [], memory, said, own_memory=own_memory)
    return Chosen(tuple(presets), of_all, room, typed)


def _cache_words(home: Home, options: ServerOptions, said: tuple[str, ...]) -> tuple[str, ...]:
    """An empty folder means none, also where one is named for all."""
    if has_flag(said, CACHE_FLAG):
        return ()
    return (CACHE_FLAG, choose_cache(home.kv_cache, options.cache, options.no_cache, said, os.environ) or "")


def _unsaid(flags: Sequence[str], said: Sequence[str]) -> list[str]:
    """Without what the user says: a preset that has a flag in two spellings is read in no certain order."""
    known = {_flag(word) for word in said if is_flag(word)}
    return [word for group in grouped(flags) if _flag(group[0]) not in known for word in group]


def _flag(word: str) -> str:
    """One name for all spellings of a flag that we know."""
    word = spelled(word)
    return next((flags[0] for flags, _ in SPELLINGS.values() if word in flags), word)


def _say_ignored(name: str, wanted: ServerOptions, options: ServerOptions) -> None:
    """One program serves all of them, at one address."""
    ignored = [what for what in ("host", "port") if getattr(wanted, what) != getattr(options, what)]
    ignored += ["backend"] if wanted.backend not in (AUTO, options.backend) else []
    ignored += [word for word in wanted.extra if is_of_router(word)]
    if ignored:
        console.say(f"{name}: not used, because other models are served as well: its own {', '.join(ignored)}")


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
