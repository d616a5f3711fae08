"""Has `llama-run --server`, which chooses build and model, and shows what the supervisor does."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import click
from rich.markup import escape
from rich.status import Status

from pyrun import console
from pyrun.build.builder import BuildRequest, build, has_web_ui, is_built
from pyrun.bundle.start import prepare_bundle
from pyrun.cache.folder import make_cache
from pyrun.cache.owners import remember
from pyrun.cache.remote import fingerprint, summary
from pyrun.cli.backends import device_warning, settle_backend
from pyrun.cli.live_lines import LiveLines
from pyrun.cli.models import print_profile, summary_of
from pyrun.errors import UserError
from pyrun.extras import has_native, missing_extra
from pyrun.home import BundledHome, Home
from pyrun.machine.backends import runtime_environment
from pyrun.machine.describe import Machine
from pyrun.machine.names import AUTO
from pyrun.machine.snapshot import Snapshot
from pyrun.memory.spool import SPOOL
from pyrun.models.calibration import describe_starts, read_starts, remember_start, starts_of, taken_of
from pyrun.models.choose import built_in, choose_model
from pyrun.models.default import (
    CHAT_TEMPLATE,
    DESCRIPTION,
    SAMPLING,
    default_model_path,
    ensure_default_model,
)
from pyrun.models.facts import facts_of_name
from pyrun.models.find import Model, how_to_get_one
from pyrun.models.fit import memory_for
from pyrun.models.look import look
from pyrun.models.profile import Profile, choose_profile, read_wishes
from pyrun.models.slow_quants import slow_on_cpu
from pyrun.models.suggested import suggestions
from pyrun.power.watch import PowerWatch
from pyrun.server.address import Address, Key, choose_address, find_key
from pyrun.server.ask import ask
from pyrun.server.command import (
    ALIAS_VARIABLE,
    METADATA_VARIABLE,
    SPOOL_VARIABLE,
    ServerSettings,
    choose_cache,
    kept_in,
    server_command,
)
from pyrun.server.loaded import LoadedModels
from pyrun.server.log import log_of, rotate
from pyrun.server.port import check_port
from pyrun.server.router import Preset
from pyrun.server.stop import LONGEST_SECONDS, LONGEST_SECONDS_OF_SEVERAL
from pyrun.server.supervisor import State, Supervisor, Watched, stop_on_signals
from pyrun.tools.kept import kept_folders
from pyrun.tools.mcp_config import check_local, lacks_tools, write_config
from pyrun.tools.root import Root
from pyrun.workers.ask import ask_workers, missing_worker
from pyrun.workers.endpoint import Endpoint

# The server gives a kind of trouble and its reason; for some kinds, more room is the remedy.
NOT_STORING = re.compile(r"not storing \((\w+)\): (.+)")
LACK_OF_ROOM = ("no_space", "over_budget")
FAR_OFF = 1.25  # a model that takes so much more than expected may not fit where it should


@dataclass(frozen=True)
class ServerOptions:
    model: str | None
    backend: str
    host: str | None
    port: int | None
    ctx: int | None
    cache: Path | None
    no_cache: bool
    build: bool
    auto: bool
    print_profile: bool
    dry_run: bool
    extra: tuple[str, ...]
    n_set: int = 0  # so many words of `extra` stand in llama-run.toml; those behind them were typed
    shared: Path | None = None
    overflow: str | None = None
    with_tools: bool = False
    warm: str | None = None  # a file of prompts to prepare, or its name in llama-run.toml
    workers: tuple[Endpoint, ...] = ()


def run_server(
    home: Home,
    options: ServerOptions,
    of_model: Callable[[str, ServerOptions], ServerOptions] = lambda name, options: options,
) -> None:
    """`of_model` adds what the user has set for the model that is chosen."""
    # The cheap checks come first: nobody wants to hear of a busy port after ten minutes of building.
    model = choose_model(home, options.model)
    if options.model is None:
        _say_why(home, model)
    options = of_model(Path(model.name).name, options)
    address = choose_address(options.host, options.port, options.extra, os.environ)
    tools = tools_root(home, address, options)
    cache = choose_cache(home.kv_cache, options.cache, options.no_cache, options.extra, os.environ)
    settled = settle_backend(home, options.backend, may_build=options.build)
    if options.backend == AUTO:
        console.say(f"backend: {settled.backend} ({settled.why})")
    options, machine = replace(options, backend=settled.backend), settled.machine
    if model.path == default_model_path(home) and not model.parts:
        _suggest_models(home, memory_for(machine, options.backend).both)
    workers = ask_workers(options.workers)
    lent = tuple(free for worker in workers for free in worker.memory)
    kept = kept_in(cache, options.extra)
    profile = _choose_profile(model, machine, options, kept, lent)
    if options.print_profile:
        assert profile is not None
        starts = [s for s in read_starts(starts_of(home)) if (s.model, s.backend) == (model.name, options.backend)]
        print_profile(profile, describe_starts(starts))
        return
    if not options.dry_run:
        if kept:
            make_cache(Path(kept))
        for host in address.hosts:
            check_port(host, address.port)
        ensure_built(home, options, settled.snapshot)
        if model.path == default_model_path(home):
            ensure_default_model(home)
            profile = _choose_profile(built_in(model.path), machine, options, kept, lent)
    settings = replace(
        settings_for(home, model.path, address, options),
        ctx=options.ctx or (profile.context if profile else None),
        cache=cache,
        chat_template=CHAT_TEMPLATE if model.path == default_model_path(home) else None,
        # It is called as its file is, without folders and parts: agents show it, and a path says more than they need.
        name=None if os.environ.get(ALIAS_VARIABLE) else Path(model.name).name,
        sampling=SAMPLING if model.path == default_model_path(home) and options.auto else (),
        profile=profile.flags if profile else (),
        workers=tuple(str(worker) for worker in options.workers),
        # A bundle's server would use the graphics that it finds here, or nothing at all.
        devices=tuple(f"RPC{n}" for n in range(len(lent))) if options.backend == "cpu" else (),
    )
    warn_of_open_server(address, find_key(options.extra, os.environ))
    if options.dry_run:
        click.echo(shlex.join(server_command(settings)))
        return
    if profile:
        console.say(f"profile: {summary_of(profile)}; --print-profile says why")
        # Nobody chose the built-in model for its speed, and there is no other one of it to take instead.
        if options.backend == "cpu" and model.path != default_model_path(home):
            slow = slow_on_cpu(profile.facts.quantisation, platform.machine())
            if slow:
                console.say(f"note: {slow}")
    if warning := device_warning(settled):
        console.say(warning)
    use_runtime(machine, options.backend)
    offer_tools(settings, tools, server_command(settings))
    for worker in workers:
        console.say(f"worker: {worker.endpoint}, with {console.size(sum(worker.memory))}")
    supervise(home, settings, profile, model.name, options.workers)


def settings_for(home: Home, model: Path, address: Address, options: ServerOptions) -> ServerSettings:
    """What counts for one model and for several. `model` may be the file of their presets."""
    key = find_key(options.extra, os.environ)
    return ServerSettings(
        binary=home.server_binary(options.backend),
        model=model,
        address=address,
        web_page=None if has_web_ui(home, options.backend) else home.web_page,
        users_by_metadata=bool(address.open_hosts or key or os.environ.get(METADATA_VARIABLE)),
        shared=options.shared.absolute() if options.shared else None,
        overflow=options.overflow,
        spool=None if os.environ.get(SPOOL_VARIABLE) else home.memory / SPOOL,
        tools=home.tools_config(address.port) if options.with_tools else None,
        extra=options.extra,
    )


def warn_of_open_server(address: Address, key: Key | None) -> None:
    if address.open_hosts and key is None:
        console.say(
            f"warning: {', '.join(address.open_hosts)} can be reached from other machines and there is no API key; "
            "add `-- --api-key SECRET`, or leave --host out"
        )


def use_runtime(machine: Machine, backend: str) -> None:
    """Sets the variables that the backend needs here; the server inherits them."""
    for name, value in runtime_environment(machine, backend).items():
        if name not in os.environ:
            console.say(f"{name}={value}")
            os.environ[name] = value


def tools_root(home: Home, address: Address, options: ServerOptions) -> Path | None:
    """Where the tools may read and write; says what is wrong with their settings before anything is started."""
    if not options.with_tools:
        return None
    check_local(address, options.extra)
    if find_spec("mcp") is None:
        raise missing_extra("mcp", "tools")
    from pyrun.tools.setup import load_setup

    setup = load_setup(home, os.environ)
    return _checked_root(setup.root, setup.protected)


def _checked_root(folder: Path, protected: Iterable[Path]) -> Path:
    """Says where the folder is one of those that are protected."""
    with contextlib.closing(Root(folder, protected)) as root:
        return root.folder


def offer_tools(settings: ServerSettings, root: Path | None, words: Sequence[str]) -> None:
    """`words` are those that the server and its models are started with."""
    if root is not None and settings.tools is not None:
        kept = kept_folders(words, os.environ)
        _checked_root(root, kept)
        write_config(settings.tools, root, kept)
        console.say(f"tools: files below {root}; `llama-run tools list` shows all, logs/tools.jsonl every call")


def _choose_profile(
    model: Model, machine: Machine, options: ServerOptions, cache: str | None, lent: tuple[int, ...]
) -> Profile | None:
    """Says what is wrong with a model before anything is built or loaded."""
    facts = look(model) if model.parts else facts_of_name(model.name, model.size)
    if not options.auto:
        return None
    wishes = read_wishes(options.ctx, options.extra, os.environ)
    return choose_profile(facts, machine, options.backend, wishes, has_ssd_cache=bool(cache), workers=lent)


def _say_why(home: Home, model: Model) -> None:
    if model.path == default_model_path(home):
        console.say(f"no model in {home.models}: using the built-in default, {DESCRIPTION}")
    else:
        console.say(f"serving {model.name}, the only model in {home.models}")


def _suggest_models(home: Home, memory: int) -> None:
    """Says, at the first start without a model, which ones this machine is good for."""
    is_bundle = isinstance(home, BundledHome)
    command = "" if is_bundle else "llama-run --download "
    for one in suggestions(memory):
        console.say(f"  {console.size(one.size):>8}  {command}{one.name}  ({one.note})")
    if is_bundle:
        console.say(f"  fetch one where there is a network, and {how_to_get_one(home)}")


def ensure_built(home: Home, options: ServerOptions, snapshot: Snapshot) -> None:
    backend = options.backend
    if isinstance(home, BundledHome):
        if not is_built(home, backend):
            raise UserError(f"this bundle has no server for {backend}", "leave --backend out: auto finds what it has")
        prepare_bundle(home, backend, os.environ)
        return
    if not options.build:
        if not is_built(home, backend):
            command = f"llama-run build --backend {backend}"
            raise UserError(f"llama-server is not built yet for {backend}", f"leave out --no-build, or run `{command}`")
        return
    if not is_built(home, backend):
        console.say(f"the first start builds llama-server for {backend} from source; this takes minutes, once")
    result = build(home, BuildRequest(backend), snapshot)
    if result.changed:
        console.say(f"built in {console.duration(result.seconds)}")


def supervise(
    home: Home,
    settings: ServerSettings,
    profile: Profile | None = None,
    model: str = "",
    workers: tuple[Endpoint, ...] = (),
    presets: tuple[Preset, ...] = (),
) -> None:
    """Runs until Ctrl-C or SIGTERM, with one line for each thing that happens. `presets` are for several models."""
    log = log_of(home.logs, settings.address.port)
    rotate(log)
    view = _View(home, settings, presets[0].name if presets else None)
    key = find_key(settings.extra, os.environ)
    value = key.value if key else None
    url = settings.address.url
    caches = [cache for cache in (settings.kept_in, *(preset.cache for preset in presets)) if cache]
    several = LoadedModels(url, value, presets) if presets else None
    power = PowerWatch(
        url,
        value,
        console.say,
        Path(caches[0]) if caches else None,
        loaded=several.names if several else lambda: [None],
    )

    def listen(state: State, detail: str) -> None:
        with contextlib.suppress(OSError):  # the terminal may be gone; what follows is not for people
            view(state, detail)
        if state is State.READY and caches:
            power.ready()
            if several is not None:
                several.ready()
            # What lies on workers is not the process's own.
            if profile is not None and profile.facts.source == "metadata" and not workers:
                _hold_against(home, url, value, profile, model)

    watched = Watched(
        server_command(settings),
        f"{url}/health",
        log,
        longest_stop_seconds=LONGEST_SECONDS_OF_SEVERAL if presets else LONGEST_SECONDS,
        missing=lambda: missing_worker(workers),
    )
    supervisor = Supervisor(watched, listen, view.hear)
    stop_on_signals(supervisor)
    console.say(f"log: {log}")
    try:
        with _spool_watch(home):
            supervisor.run()
    finally:
        power.stop()
        if several is not None:
            several.stop()
        with contextlib.suppress(OSError):  # the terminal may be gone
            view.end_wait()


def _spool_watch(home: Home) -> contextlib.AbstractContextManager[object]:
    """Takes in what leaves chats, as long as it is entered. Without the native module it waits for whoever has it."""
    if not has_native():
        return contextlib.nullcontext()
    from pyrun.memory.limit import memory_limit
    from pyrun.memory.watch import SpoolWatch

    return SpoolWatch(home.memory, memory_limit(home.settings), lambda trouble: console.say(f"warning: {trouble}"))


def _hold_against(home: Home, url: str, key: str | None, profile: Profile, model: str) -> None:
    """Notes what the model really took, for --print-profile and doctor, and says so where the profile was far off."""
    try:
        taken = taken_of(ask(url, "/cache", key, verify=False))
    except UserError:
        return
    if taken is None:
        return
    start = remember_start(starts_of(home), model, profile.backend, profile.need, taken)
    if start.factor > FAR_OFF:
        console.say(f"note: the model takes {start.factor:.1f} times the memory that was expected of it")


class _View:
    """What a person sees of the supervisor's states."""

    def __init__(self, home: Home, settings: ServerSettings, named: str | None) -> None:
        self._home = home
        self._settings = settings
        self._named = named  # the model that an example names, where there are several
        self._last_notice = ""
        self._status: Status | None = None
        self._since = time.monotonic()
        self._seen_ready = False
        self._lines: LiveLines | None = None

    def __call__(self, state: State, detail: str) -> None:
        self.end_wait()
        if self._lines is not None:
            self._lines.stop()
            self._lines = None
        if state is State.STARTING:
            self._since = time.monotonic()
            self._begin_wait(f"loading {self._settings.model.name}")
        elif state is State.READY:
            self._ready(detail)
        elif state is State.BACKOFF:
            console.say(f"llama-server ended: {detail}")
        elif state is State.WAITING:
            console.say(f"waiting for {detail}")
        elif state is State.STOPPING:
            self._begin_wait("stopping llama-server (Ctrl-C again kills it: what is not saved is evaluated again)")
        elif state is State.SAVING:
            self._begin_wait("saving state ... (Ctrl-C again skips it: what is not saved is evaluated again)")
        elif state is State.STOPPED:
            console.say(f"stopped: {detail}, what was not saved is evaluated again" if detail else "stopped")

    def hear(self, notice: str) -> None:
        """Passes on what the server says about its cache, and again only when that has changed."""
        if notice == self._last_notice:
            return
        self._last_notice = notice
        trouble = NOT_STORING.fullmatch(notice)
        if not trouble:
            console.say(f"the cache is {notice}")
            return
        kind, reason = trouble.groups()
        text = f"warning: the cache is not storing: {console.printable(reason)}"
        if kind in LACK_OF_ROOM:
            text += (
                ". Answers come as before, but what is new will be evaluated again; "
                "free space on the cache's disk, or allow it more: -- --cache-ssd-max-size SIZE"
            )
        console.say(text)

    def _ready(self, detail: str) -> None:
        seconds = time.monotonic() - self._since
        url = self._settings.address.url
        console.say(f"ready at {url} after {seconds:.1f} s ({detail}); Ctrl-C stops it")
        key = find_key(self._settings.extra, os.environ)
        value = key.value if key else None
        if self._settings.room is None:
            console.say(f"cache: {summary(url, self._home.root, value)}")
        if self._settings.room is None and (told := fingerprint(url, value)):
            cache, name = told
            remember(cache, self._settings.model, name)  # --list-models asks for it
        console.say(f"page: {url}/dashboard")
        if self._settings.tools and lacks_tools(url, value):
            console.say(
                "warning: llama-server has no tools: it waits 10 s for their list when it starts, and it took longer. "
                "Start it again, when the machine is less busy"
            )
        if console.err.is_terminal and self._settings.room is None:
            self._lines = LiveLines(url, value)
            self._lines.start()
        if not self._seen_ready:
            self._seen_ready = True
            console.say(f"try: {example(self._settings.address, key, console.err.is_terminal, self._named)}")

    def _begin_wait(self, message: str) -> None:
        if console.err.is_terminal:
            self._status = console.err.status(escape(message))
            self._status.start()
        else:
            console.say(message)

    def end_wait(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None


def example(address: Address, key: Key | None, to_person: bool, model: str | None = None) -> str:
    """Writes a command that works when it is copied to another terminal. Whatever else keeps our words gets no key."""
    insecure = "-k " if address.is_encrypted else ""  # the certificate is for another name
    header = ""
    if key:
        token = "***" if key.is_shown and not to_person else key.in_shell
        header = f'-H "Authorization: Bearer {token}" '
    named = {"model": model} if model else {}
    body = shlex.quote(json.dumps({**named, "messages": [{"role": "user", "content": "Hello!"}]}))
    url = f"{address.url}/v1/chat/completions"
    return f"curl {insecure}{url} {header}-H 'Content-Type: application/json' -d {body}"
