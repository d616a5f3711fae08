"""Has `llama-run --download`, which finds repository and quantisation, and shows the download."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeVar
from urllib.parse import urlsplit

import click
import psutil

from pyrun import console
from pyrun.errors import UserError
from pyrun.home import Home
from pyrun.models.download import Plan, carry_out, check_space, download_lock, folder_of, make_plan
from pyrun.models.find import PART, list_models
from pyrun.models.hub import REPOSITORY, Hub, Repository
from pyrun.models.slow_quants import slow_on_cpu
from pyrun.models.variants import Offer, Variant, match, offer_of

USUAL = "Q4_K_M"  # it is proposed where nothing was asked for
SEARCH_RESULTS = 10

Choice = TypeVar("Choice")


@dataclass(frozen=True)
class Wanted:
    """What the user asked for: a repository or words, and perhaps a quantisation or a file's name."""

    repository: str | None
    words: str
    quant: str | None


def run_download(home: Home, name: str, quant: str | None, mmproj: bool) -> None:
    hub = Hub()
    wanted = read_name(name, quant, hub.endpoint)
    repository = _search(hub, wanted) if wanted.repository is None else hub.repository(wanted.repository)
    offer = offer_of(repository.files)
    if not offer.models:
        _nothing_to_serve(hub, repository, offer)
    model = _choose_variant(repository, offer, wanted.quant)
    variants = [model]
    if mmproj:
        variants.append(_projector(repository, offer))
    _warn(model, sum(variant.size for variant in variants))
    _download(home, hub, repository, variants)


def read_name(name: str, quant: str | None, endpoint: str) -> Wanted:
    """Understands `owner/repo`, `owner/repo:Q4_K_M`, the address of either in a browser, and words."""
    text = name.strip()
    hosts = "|".join(re.escape(host) for host in (r"huggingface.co", "hf.co", urlsplit(endpoint).netloc))
    address = re.match(rf"(?:https?://)?(?:{hosts})/([^/?#]+/[^/?#]+)(?:/(?:blob|resolve)/[^/]+/([^?#]+))?", text)
    if address is not None:
        text = address.group(1) + (f":{address.group(2)}" if address.group(2) else "")
    base, colon, tag = text.partition(":")
    if colon and quant is not None and tag.lower() != quant.lower():
        raise click.UsageError(f"':{tag}' and --quant {quant} contradict each other")
    quant = quant or tag or None
    if REPOSITORY.fullmatch(base):
        return Wanted(base, "", quant)
    if "/" in base or not base.strip():
        raise UserError(
            f"{name!r} is not the name of a repository",
            "give OWNER/REPOSITORY, or words to search for: llama-run --download 'qwen3 8b'",
        )
    return Wanted(None, base.strip(), quant)


def _search(hub: Hub, wanted: Wanted) -> Repository:
    with console.waiting(f"searching for {wanted.words!r}"):
        found = [r for r in hub.search(wanted.words, SEARCH_RESULTS) if offer_of(r.files).models]
    if not found:
        raise UserError(f"no repository with GGUF files is called {wanted.words!r}", "try fewer or other words")
    rows = [(r.id, f"{r.downloads:,} downloads", _sizes(r, wanted.quant), "gated" * r.is_gated) for r in found]
    command = f"llama-run --download {found[0].id}" + (f" --quant {wanted.quant}" if wanted.quant else "")
    message = f"these repositories fit {wanted.words!r}:\n{{}}"
    return _choose(found, rows, message, f"say which one: {command}")


def _sizes(repository: Repository, quant: str | None) -> str:
    models = offer_of(repository.files).models
    fitting = match(models, quant).variants if quant else ()
    if fitting:
        return f"{fitting[0].label}: {console.size(fitting[0].size)}"
    smallest, largest = console.size(models[0].size), console.size(models[-1].size)
    return smallest if len(models) == 1 else f"{smallest} to {largest}"


def _nothing_to_serve(hub: Hub, repository: Repository, offer: Offer) -> NoReturn:
    if offer.incomplete:
        raise UserError(
            f"{repository.id} has only incomplete sets of files: {', '.join(offer.incomplete)}",
            "its owner may be uploading them: try again later",
        )
    name = re.sub(r"[-_]+", " ", repository.id.partition("/")[2])
    raise UserError(
        f"{repository.id} has no GGUF model",
        f'others may have converted it; search for them: llama-run --download "{name} gguf"; its files: '
        f"{hub.url(repository.id)}/tree/main",
    )


def _choose_variant(repository: Repository, offer: Offer, quant: str | None) -> Variant:
    models = list(offer.models)
    if quant is None and len(models) == 1:
        return models[0]
    message = f"{repository.id} has several models:\n{{}}"
    if quant is not None:
        found = match(models, quant)
        if len(found.variants) == 1:
            model = found.variants[0]
            if not found.is_exact:
                console.say(f"{repository.id} has no {quant}; taking {model.label}, the nearest of its kind")
            return model
        if found.variants:
            models = list(found.variants)
            message = f"{repository.id} has several models in {quant}:\n{{}}"
        else:
            message = f"{repository.id} has no {quant}; it has:\n{{}}"
    is_named = len({v.label for v in models}) < len(models)  # only the name tells them apart then
    rows = [(v.name if is_named else v.label, console.size(v.size), _parts(v)) for v in models]
    usual = next(iter(match(models, USUAL).variants), None)
    proposed = usual or models[0]
    example = proposed.name.rpartition("/")[2] if is_named else proposed.label
    hint = f"say which one: llama-run --download {repository.id} --quant {example}"
    return _choose(models, rows, message, hint, usual)


def _parts(variant: Variant) -> str:
    return f"in {len(variant.files)} files" if len(variant.files) > 1 else ""


def _choose(
    options: Sequence[Choice],
    rows: Sequence[Sequence[str]],
    message: str,
    hint: str,
    default: Choice | None = None,
) -> Choice:
    """Asks on a terminal; elsewhere the list is the answer."""
    if not console.is_interactive():
        raise UserError(message.format(_table(rows)), hint)
    numbered = [(f"{number})", *row) for number, row in enumerate(rows, 1)]
    console.say(message.format(_table(numbered)))
    proposed = options.index(default) + 1 if default is not None else None
    number = click.prompt("Which one?", type=click.IntRange(1, len(options)), default=proposed, err=True)
    return options[int(number) - 1]


def _table(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"  {line}" for line in console.columns(rows))


def _projector(repository: Repository, offer: Offer) -> Variant:
    if not offer.projectors:
        raise UserError(
            f"{repository.id} has no mmproj file",
            "leave --mmproj out, or take a repository that has one; models without it read text only",
        )
    chosen = offer.projectors[0]
    if len(offer.projectors) > 1:
        console.say(f"taking {chosen.files[0].path} of {len(offer.projectors)} projectors")
    return chosen


def _warn(model: Variant, size: int) -> None:
    slow = slow_on_cpu(model.quant, platform.machine())
    if slow is not None:
        console.say(f"note: {slow} (this matters where the CPU evaluates prompts)")
    memory = psutil.virtual_memory().total
    if size > memory:
        console.say(
            f"warning: {model.label} takes {console.size(size)}; this machine has {console.size(memory)} of memory: "
            "it will not run here, or only by reading the disk for every token; take a smaller quantisation or model"
        )


def _download(home: Home, hub: Hub, repository: Repository, variants: Sequence[Variant]) -> None:
    files = [file for variant in variants for file in variant.files]
    with download_lock(folder_of(home, repository)):
        plan = make_plan(home, repository, files)
        if plan.missing:
            check_space(plan)
            _announce(plan)
            _until_stopped(lambda: carry_out(hub, plan))
            console.say(f"{_count(len(plan.missing))} complete and checked in {plan.folder}")
        else:
            console.say(f"{_count(len(files))} already in {plan.folder}, complete and checked: nothing to download")
    targets = [item.target for item in plan.items]
    _show_result(home, targets, variants)


def _announce(plan: Plan) -> None:
    text = f"downloading {console.size(plan.n_missing)} from {plan.repository.id} into {plan.folder}"
    if plan.n_arrived:
        text += f"; {console.size(plan.n_arrived)} arrived earlier"
    console.say(text)


def _until_stopped(work: Callable[[], None]) -> None:
    try:
        work()
    except (KeyboardInterrupt, SystemExit):
        console.say("stopped; what has arrived is kept, and the same command goes on there")
        raise


def _show_result(home: Home, targets: Sequence[Path], variants: Sequence[Variant]) -> None:
    first = targets[0]
    name = PART.sub("", first.name).removesuffix(".gguf")
    if not _is_unique(home, name):
        name = str(first)
    projector = f" -- --mmproj {targets[-1]}" if len(variants) > 1 else ""
    console.say(f"serve it: llama-run --server {name}{projector}")
    click.echo(first)


def _is_unique(home: Home, name: str) -> bool:
    try:
        return sum(model.name == name for model in list_models(home)) == 1
    except UserError:  # it is about another model there, whose parts are incomplete
        return False


def _count(n_files: int) -> str:
    return f"{n_files} file is" if n_files == 1 else f"{n_files} files are"
