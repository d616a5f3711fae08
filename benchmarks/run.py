"""Plays a run: which models on which backends, scenario after scenario, with results on disk at once."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks import interrupt, machine, plots, report
from benchmarks import limits as machine_limits
from benchmarks.bench import OFF, OURS, SLOTS, UPSTREAM, Bench, Options, context_for
from benchmarks.peers import AT_ONCE
from benchmarks.progress import RunProgress
from benchmarks.results import (
    SCHEMA,
    SUMMARY,
    chosen_run_folder,
    file_name,
    is_url,
    new_result,
    new_run_folder,
    write_json,
)
from benchmarks.scenarios import agent, chat, fleet, herd, load, restart, swarm
from benchmarks.stats import summarise
from pyrun import console
from pyrun.errors import UserError
from pyrun.home import Home
from pyrun.machine.names import BACKENDS
from pyrun.models.default import CHAT_TEMPLATE, default_model_path, ensure_default_model
from pyrun.models.facts import ModelFacts
from pyrun.models.find import Model, find_model
from pyrun.models.look import look, see_models

SCENARIOS: dict[str, ModuleType] = {module.NAME: module for module in (restart, agent, chat, fleet, load, swarm, herd)}
INTERRUPTED = 130


@dataclass(frozen=True)
class Request:
    scenarios: tuple[str, ...]
    options: Options
    models: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    server: Path | None = None
    out: Path | None = None
    cache_folder: Path | None = None
    command: str = ""


@dataclass(frozen=True)
class Programs:
    """The servers of one backend."""

    ours: Path
    unpatched: Path | None
    peers: dict[str, str]  # what each is, in words for the reader

    def of_peers(self) -> dict[str, Path]:
        """Gives the program of each peer that is ours to start."""
        paths = {name: self.ours if name in (OURS, OFF) else self.unpatched for name in self.peers if not is_url(name)}
        return {name: path for name, path in paths.items() if path is not None}


def run(home: Home, request: Request) -> int:
    """Gives the exit code: 0 if all is valid, 1 if not, 130 after Ctrl-C. Whatever was done is kept."""
    models = _choose_models(home, request.models)
    facts = {model.path: look(model) for model in models}  # a broken one is found before hours are spent on the first
    if chat.NAME in request.scenarios:
        chat.check(request.options)
    backends = _choose_backends(home, request)
    programs = {backend: _programs(home, request, backend) for backend in backends}
    before = machine.noise()
    if machine.is_busy(before):
        console.say(f"warning: the machine is busy (load average {before['load_average'][0]}); times will be too long")
    about = {"schema": SCHEMA, "command": request.command, "machine": machine.describe_machine(), "status": "running"}
    about |= {"started": _now(), "noise": before}
    failure: UserError | None = None
    with _caches(home, request.cache_folder) as caches:
        # The folder is made last, when nothing can be refused any more, so that none is left behind without a result.
        folder = chosen_run_folder(request.out) if request.out else new_run_folder(home.root / "benchmarks" / "results")
        write_json(folder / "run.json", about)
        try:
            for backend in backends:
                for model in models:
                    bench = _bench(home, request, backend, programs[backend], model, facts[model.path], folder, caches)
                    _measure(bench, request.scenarios, _summary(home, request, programs[backend], bench, about))
            about["status"] = "complete"
        except KeyboardInterrupt:
            about["status"] = "interrupted"
        except UserError as error:
            failure = error
            about |= {"status": "failed", "problem": _told(error)}
    write_json(folder / "run.json", about | {"ended": _now()})
    names = {caches: "CACHES", folder.absolute(): "RESULTS", home.root: ".", Path.home(): "~"}
    names |= {caches.parent: "DIR"} if request.cache_folder else {}
    names |= {model.path.parent: "MODELS" for model in models}
    names |= {program.parent: "BIN" for each in programs.values() for program in (each.ours, each.unpatched) if program}
    _scrub(folder, names)
    valid = _show(folder)
    if about["status"] == "interrupted":
        console.say(
            "interrupted before anything was measured" if valid is None else "interrupted: what was done is kept"
        )
        return INTERRUPTED
    if failure is not None:
        console.show_error(failure)
        return failure.exit_code
    if not valid:
        console.say("the run failed: at least one result is invalid, see above")
    return 0 if valid else 1


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def _told(error: UserError) -> str:
    return f"{error.message}{f' ({error.hint})' if error.hint else ''}"


def _show(folder: Path) -> bool | None:
    """Writes and shows what all models have in common, and says whether it is valid: None if nothing was measured."""
    if not any(folder.glob(f"*/*/{SUMMARY}")):
        return None
    valid = report.write_run_report(folder)
    report.show(folder)
    console.say(f"results: {folder}")
    if not plots.can_draw():
        console.say(f"plots were skipped: {plots.HOW_TO_GET}, then `benchmark report {folder}` draws them")
    return valid


def _bench(
    home: Home,
    request: Request,
    backend: str,
    programs: Programs,
    model: Model,
    facts: ModelFacts,
    folder: Path,
    caches: Path,
) -> Bench:
    return Bench(
        options=request.options,
        model=model,
        facts=facts,
        backend=backend,
        server=programs.ours,
        unpatched=programs.unpatched,
        chat_template=CHAT_TEMPLATE if model.path == default_model_path(home).resolve() else None,
        caches=caches,
        limits={},
        progress=RunProgress(),
        folder=folder / file_name(backend) / file_name(model.name),
    )


def _summary(home: Home, request: Request, programs: Programs, bench: Bench, about: dict[str, Any]) -> dict[str, Any]:
    """Has what is known of a model's results before there are any; limits and scenarios come as they are measured."""
    return {
        "schema": SCHEMA,
        "command": request.command,
        "backend": bench.backend,
        "machine": about["machine"],
        "build": machine.describe_build(home, programs.ours),
        "model": machine.describe_model(bench.model, bench.facts),
        "peers": programs.peers,
        "programs": {name: machine.describe_program(path) for name, path in programs.of_peers().items()},
        "flags": {},
        "limits": bench.limits,
        "scenarios": {},
    }


def _measure(bench: Bench, scenarios: tuple[str, ...], summary: dict[str, Any]) -> None:
    console.say(f"{bench.model.name} on {bench.backend}: {', '.join(scenarios)}")
    largest = max(map(restart.size_of, bench.options.sizes)) * bench.facts.kv_per_token("f16", "f16")
    bench.limits["reading"] = machine_limits.measure_reading(bench.caches, int(largest))
    plans = [(name, _plan(bench, SCENARIOS[name])) for name in scenarios]
    bench.progress.open(sum(cost for _, cost in plans))
    reached = 0.0
    try:
        for name, cost in plans:
            _play(bench, summary, name)
            reached += cost
            bench.progress.reach(reached)
    finally:
        bench.progress.close()
        write_json(bench.folder / SUMMARY, summary)
        report.write_model_report(bench.folder)


def _plan(bench: Bench, scenario: ModuleType) -> float:
    ctx = context_for(scenario.needs(bench), bench.options.ctx, bench.facts.context)
    cost: float = scenario.plan(bench, ctx)
    return cost


def _play(bench: Bench, summary: dict[str, Any], name: str) -> None:
    """Fills in the summary, whatever happens: a failure is a result, too."""
    scenario = SCENARIOS[name]
    bench.enter(name, scenario.needs(bench))
    result = new_result(name, _settings(bench, scenario))
    summary["scenarios"][name] = result
    summary["flags"][name] = " ".join(_flags(bench, name))
    noise = result["noise"] = {"before": machine.noise()}
    try:
        scenario.play(bench, result)
        interrupt.check()
        result["status"] = "complete"
    except UserError as error:
        result["status"] = "failed"
        result["problems"].append(_told(error))
    except KeyboardInterrupt:
        result["status"] = "interrupted"
        raise
    finally:
        scenario.end(bench.limits, result)
        for speed, values in bench.speeds.items():
            bench.limits[speed] = summarise(values)
        noise["after"] = machine.noise()
        write_json(bench.folder / SUMMARY, summary)


def _flags(bench: Bench, name: str) -> list[str]:
    many = {module.NAME: module for module in (load, swarm, herd)}
    slots = many[name].slots(bench) if name in many else 1
    return [
        "--ctx-size",
        str(bench.ctx * slots),
        "--parallel",
        str(slots),
        "--cache-ssd",
        "DIR",
        *AT_ONCE,
        *bench.options.flags,
    ]


def _settings(bench: Bench, scenario: ModuleType) -> dict[str, Any]:
    """Has what a scenario went by, whether the user said so or not, and nothing that it does not look at."""
    own: dict[str, Any] = scenario.settings(bench)
    salt = {"salt": bench.salt} if bench.salt else {}
    return {"ctx": bench.ctx, "peers": bench.options.peers, "flags": bench.options.flags, **salt, **own}


def _choose_models(home: Home, wanted: tuple[str, ...]) -> list[Model]:
    if wanted:
        return [find_model(home, name) for name in wanted]
    seen = see_models(home)
    for each in seen:
        if each.problem is not None:
            console.say(f"left out: {each.problem.message}")
    models = [each.model for each in seen if each.problem is None]
    if models:
        return models
    console.say("no model in models/: using the built-in default")
    return [find_model(home, str(ensure_default_model(home)))]


def _choose_backends(home: Home, request: Request) -> tuple[str, ...]:
    built = sorted(path.parents[1].name for path in home.build("cpu").parent.glob("*/bin/llama-server"))
    known = list(dict.fromkeys([*BACKENDS, *built]))
    for wanted in request.backends:
        if wanted not in known:
            raise UserError(
                f"there is no backend {wanted!r}",
                f"backends are {', '.join(known)}; for several, give --backend several times",
            )
    if request.backends:
        return request.backends
    if request.server is not None:
        return (machine.backend_of(request.server),)
    if not built:
        raise UserError("llama-server is not built", "run `llama-run build` first, or give one: --server PATH")
    return tuple(built)


def _programs(home: Home, request: Request, backend: str) -> Programs:
    ours = (request.server or home.server_binary(backend)).absolute()
    if not ours.is_file():
        raise UserError(f"there is no server {ours}", f"`llama-run build --backend {backend}` builds it")
    options = request.options
    told = {OURS: "the patched server, with its cache on disk"}
    unpatched: Path | None = None
    if {UPSTREAM, SLOTS} & set(options.peers):
        if options.upstream is not None:
            unpatched, which = options.upstream.absolute(), "a server given by the user"
            if not unpatched.is_file():
                raise UserError(f"there is no server {unpatched}", "leave out --upstream to have it built")
        else:
            from pyrun.build.unpatched import build_unpatched

            built = build_unpatched(home, backend)
            unpatched, which = built.server, f"llama.cpp {built.commit[:9]}, unpatched"
            if built.fixes:
                which += f" but for {', '.join(built.fixes)} (a compiler's fault, worked around on both sides)"
        told |= {UPSTREAM: which} if UPSTREAM in options.peers else {}
        told |= {SLOTS: f"{which}; its slot is saved and restored by hand"} if SLOTS in options.peers else {}
    told |= {OFF: "the patched server, without the cache"} if OFF in options.peers else {}
    told |= {peer: "a server of its own, not restarted" for peer in options.peers if is_url(peer)}
    return Programs(ours, unpatched, told)


@contextmanager
def _caches(home: Home, chosen: Path | None) -> Iterator[Path]:
    """The folder lies on the disk that is measured, and is gone at the end."""
    parent = chosen or home.root / ".cache"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="benchmark-", dir=parent)).resolve()
    except OSError as error:
        raise UserError(
            f"cannot write to {parent}: {error.strerror or error}", "give another: --cache-folder"
        ) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _scrub(folder: Path, names: dict[Path, str]) -> None:
    """Results are meant to be shown: where things lie on this machine is nobody's business."""
    for path in folder.rglob("*"):
        if path.suffix in (".log", ".json", ".jsonl", ".md") and path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            for place in sorted(names, key=lambda each: len(str(each)), reverse=True):
                if place != Path(place.anchor):
                    text = text.replace(str(place), names[place])
            path.write_text(text, encoding="utf-8")
