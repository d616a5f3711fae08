"""Has `llama-run --list-models` and `--print-profile`."""

from __future__ import annotations

from pathlib import Path

import click

from pyrun import console
from pyrun.cache.folder import HeldError
from pyrun.cache.look import count_conversations
from pyrun.cache.owners import fingerprints_of
from pyrun.cli.backends import settle_backend
from pyrun.errors import UserError
from pyrun.extras import has_native
from pyrun.home import Home
from pyrun.machine.describe import GIB, Machine
from pyrun.models.find import how_to_get_one
from pyrun.models.gguf import BrokenModelError
from pyrun.models.look import Seen, companions, see_models
from pyrun.models.profile import Profile, Wishes, choose_profile

NUMBERS = (2, 4, 5)  # these columns are aligned at the right


def print_models(home: Home, backend: str, cache: str | None) -> None:
    """`cache` is where state is stored: the list says how many conversations each model has there."""
    seen = see_models(home)
    extra = companions(home, seen)
    seen = [one for one in seen if one.model.path not in extra]
    if not seen:
        console.say(f"{home.models} is empty; {how_to_get_one(home)}; `llama-run --server` takes a small default")
    else:
        settled = settle_backend(home, backend)
        rows: list[tuple[str, ...]] = [("model", "architecture", "size", "quant", "context", "stored", "fits")]
        rows += [_row(one, settled.machine, settled.backend, Path(cache) if cache else None) for one in seen]
        for line in console.columns(rows, NUMBERS):
            click.echo(line)
    for path in extra:
        name = str(path.relative_to(home.models))
        click.echo(f"companion of a model: {name} ({console.size(path.stat().st_size)})")


def _row(one: Seen, machine: Machine, backend: str, cache: Path | None) -> tuple[str, ...]:
    size = console.size(one.model.size)
    name = one.model.name.encode("utf-8", "replace").decode()
    if one.facts is None:
        return name, "-", size, "-", "-", "-", f"broken: {_short(one.problem)}"
    facts = one.facts
    context = f"{facts.context:,}" if facts.context else "?"
    fits = _fits(one, machine, backend)
    return name, facts.architecture, size, facts.quantisation, context, _stored(one.model.path, cache), fits


def _stored(model: Path, cache: Path | None) -> str:
    """Counts conversations, and is `-` where no server has told which of the stored state is this model's."""
    known = fingerprints_of(cache, model) if cache and has_native() else []
    try:
        return f"{count_conversations(cache, known):,}" if cache and known else "-"
    except HeldError:
        return "in use"
    except UserError:
        return "?"


def _short(problem: UserError | None) -> str:
    if isinstance(problem, BrokenModelError):
        return problem.reason
    return problem.message if problem else ""


def _fits(one: Seen, machine: Machine, backend: str) -> str:
    assert one.facts is not None
    try:
        profile = choose_profile(one.facts, machine, backend, Wishes({}, {}))
    except UserError:
        return f"no: larger than the memory of this machine ({machine.ram / GIB:.0f} GiB of RAM)"
    context = profile.value("context")
    return f"yes, with {int(context):,} tokens" if context else "not known"


def print_profile(profile: Profile, earlier: str | None = None) -> None:
    """earlier: how far off the expectation was in earlier starts."""
    facts = profile.facts
    click.echo(f"{facts.name}: {facts.architecture}, {facts.kind}, {facts.quantisation}, {console.size(facts.size)}")
    click.echo(f"known from: {facts.source}")
    if facts.source == "metadata":
        placed = f", {profile.memory.gpu / GIB:.1f} of them for graphics" if profile.memory.gpu else ""
        click.echo(
            f"takes {profile.need.total / GIB:.2f} GiB ({profile.need}) of {profile.memory.both / GIB:.1f} "
            f"({profile.memory.text}){placed}"
        )
        if earlier:
            click.echo(f"earlier: {earlier}")
    width = max(len(s.name) for s in profile.settings)
    values = max(len(s.value) for s in profile.settings)
    for setting in profile.settings:
        click.echo(f"  {setting.name:{width}}  {setting.value:{values}}  {setting.why}")
    click.echo(f"flags: {' '.join(_all_flags(profile))}")


def summary_of(profile: Profile) -> str:
    """It reads, for example: context 65536, k cache q8_0, gpu layers all; takes 21.1 of 27.8 GiB"""
    shown = ("context", "k cache", "ubatch", "gpu layers", "experts in RAM", "threads")
    chosen = ", ".join(f"{s.name} {s.value}" for s in profile.settings if s.name in shown)
    if profile.facts.source != "metadata":
        return chosen
    return f"{chosen}; takes {profile.need.total / GIB:.1f} of {profile.memory.both / GIB:.1f} GiB"


def _all_flags(profile: Profile) -> list[str]:
    return [word for setting in profile.settings for word in setting.flags]
