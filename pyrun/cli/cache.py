"""Has `llama-run cache`, which shows and removes stored state. Data goes to stdout, everything else to stderr."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from pyrun import console
from pyrun.cache.change import (
    Collected,
    Target,
    collect,
    collect_through,
    keep,
    remove,
    select_all,
    select_conversations,
    select_user,
    set_damaged_aside,
)
from pyrun.cache.folder import HeldError, Model, Refusal, Visited
from pyrun.cache.look import Conversation, Listing, Progress, Stats, Verified, cache_stats, list_cache, verify_cache
from pyrun.cache.remote import keep_on_server, list_server, server_stats, verify_on_server
from pyrun.cache.running import server_of, servers_of
from pyrun.cache.usual import named_caches, usual_cache
from pyrun.cli.completion import complete_conversation, complete_stored_model
from pyrun.cli.handover import pull_command, push_command
from pyrun.cli.why import why_command
from pyrun.errors import UserError
from pyrun.extras import has_native, no_native
from pyrun.home import find_home
from pyrun.server.address import KEY_VARIABLE, key_of
from pyrun.server.command import CACHE_FLAG
from pyrun.server.log import idle_logs

NUMBERS = range(1, 6)  # these columns of `ls` are aligned at the right

Command = TypeVar("Command", bound=Callable[..., None])

# A sentence about damaged files goes on with these words: "2 of 40 files ..."
REASONS = {
    "truncated": "have the wrong length",
    "bad_magic": "are not of this cache",
    "bad_version": "have another format version",
    "bad_checksum": "fail their checksum",
    "bad_length": "contradict themselves",
    "misplaced": "lie in the wrong place",
    "wrong_type": "are not plain files",
    "incomplete": "name state that is not there",
    "io_error": "cannot be read",
    "miss": "are gone",
}


def common_options(command: Command) -> Command:
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout."),
        click.option(
            "--model",
            metavar="NAME",
            shell_complete=complete_stored_model,
            help="Only the model with this in its name, or at the start of its fingerprint.",
        ),
        click.option(
            "--cache-ssd",
            "folder",
            metavar="DIR",
            type=click.Path(path_type=Path),
            help="The cache folder (default: kv-cache/ in the clone).",
        ),
    ):
        command = option(command)
    return command


url_option = click.option(
    "--url",
    help="Ask the server that runs there, such as http://127.0.0.1:9090, about the model it has. Its API key, if any, "
    f"is taken from {KEY_VARIABLE}.",
)


@click.group("cache")
def cache_group() -> None:
    """Show, check and clean the stored state.

    A server that has it open is asked; what `gc --corrupt` does waits until it is stopped.

    The cache holds the prompts of everyone who used the server: whoever can read its files can read them.
    """


cache_group.add_command(why_command)
cache_group.add_command(push_command)
cache_group.add_command(pull_command)


@cache_group.command("ls")
@click.option("--all-users", is_flag=True, help="Also those of users who gave an id, for who may read the folder.")
@url_option
@common_options
def ls_command(folder: Path | None, model: str | None, as_json: bool, url: str | None, all_users: bool) -> None:
    """List the stored conversations of each model, those used last first.

    OWN is what removing a conversation frees; SHARED is what others need as well. KEEP says for how long after its last
    use a conversation is protected from eviction, in brackets where that time is over or there is no room for it, and
    when it is removed.
    """
    _check_url(url, folder, model)
    if url:
        found = list_server(url, key_of(os.environ), all_users=all_users)
    elif has_native():
        found = _ask_holders(
            list_cache(_cache(folder), model), lambda url, key: list_server(url, key, all_users=all_users)
        )
    else:
        found = _ask_running(_cache(folder), model, all_users=all_users)
    if not all_users:
        found = _of_nobody(found)
    if as_json:
        _print_json(found)
    else:
        for number, listing in enumerate(found.models):
            if number:
                click.echo()
            _print_listing(listing)
        if not found.models and not _errors_of(found):
            console.say(f"nothing is stored in {found.cache}")
    damaged = sum(listing.damaged for listing in found.models)
    if damaged:
        console.say(f"warning: damage in {_count(damaged, 'file')}; `llama-run cache verify` tells more")
    _fail(_errors_of(found))


def _ask_running(cache: Path, prefix: str | None, *, all_users: bool) -> Visited[Listing]:
    """Lists what servers tell: without the native module, the files cannot be read."""
    servers = servers_of(cache)
    if not servers:
        raise no_native(f"no server of yours is running with {cache}, and its files cannot be read without one")
    wanted = (prefix or "").lower()
    told: list[Listing] = []
    for server in servers:
        try:
            told += list_server(server.url, server.key, all_users=all_users).models
        except UserError as error:
            _say_why(server.url, error)
    chosen = [one for one in told if one.fingerprint.startswith(wanted) or wanted in (one.model or "").lower()]
    console.say("only what running servers have open is listed: the native module is not built for this Python")
    return Visited(str(cache), chosen, [])


def _of_nobody(found: Visited[Listing]) -> Visited[Listing]:
    """Leaves out what belongs to users with an id, and says that there is some."""
    others = sum(c.user is not None for listing in found.models for c in listing.conversations)
    if others:
        console.say(f"{_count(others, 'conversation')} of users with an id: --all-users lists them")
    kept = [replace(one, conversations=[c for c in one.conversations if c.user is None]) for one in found.models]
    return replace(found, models=kept)


def _named(listing: Listing) -> str:
    if listing.model is None:
        return listing.fingerprint
    return f"{console.printable(listing.model)} ({listing.fingerprint})"


def _print_listing(listing: Listing) -> None:
    click.echo(f"model {_named(listing)}: {console.size(listing.bytes)} on disk")
    if not listing.conversations:
        click.echo("  no conversations")
        return
    now = time.time()
    rows = [
        (
            "conversation",
            "turns",
            "tokens",
            "own",
            "shared",
            "hits",
            "tier",
            "last used",
            "keep",
            "backend",
            "user",
            "title",
        )
    ]
    for c in listing.conversations:
        age = f"{console.duration(max(0.0, now - c.last_used_ms / 1000))} ago"
        sizes = (console.size(c.bytes_own), console.size(c.bytes_shared))
        about = (console.printable(c.backend), (c.user or "-")[:8], console.printable(c.title))
        rows.append((c.hash, str(c.turns), f"{c.tokens:,}", *sizes, str(c.hits), c.tier, age, _kept(c), *about))
    for line in console.columns(rows, NUMBERS):
        click.echo(line)


def _kept(c: Conversation) -> str:
    ttl = c.ttl if c.protected else f"({c.ttl})"
    parts = [ttl if c.ttl != "none" else "", f"gone after {c.expire}" if c.expire != "none" else ""]
    return ", ".join(part for part in parts if part) or "-"


@cache_group.command("keep")
@click.argument("hashes", metavar="HASH...", nargs=-1, required=True, shell_complete=complete_conversation)
@click.option(
    "--ttl",
    type=click.Choice(["5m", "1h", "24h", "forever", "none"]),
    help="Protect it from eviction for so long after its last use.",
)
@click.option(
    "--expire",
    metavar="DURATION",
    help="Remove it when nobody has used it for so long, such as 12h or 7d; none takes that back.",
)
@url_option
@common_options
def keep_command(
    folder: Path | None,
    model: str | None,
    as_json: bool,
    url: str | None,
    hashes: tuple[str, ...],
    ttl: str | None,
    expire: str | None,
) -> None:
    """Say how long conversations are kept, by their hash or its first digits (see `llama-run cache ls`).

    What is protected may take half of the cache's disk budget. A server removes what has expired; while none runs,
    `llama-run cache gc` does.
    """
    if ttl is None and expire is None:
        raise click.UsageError("give --ttl or --expire, or both")
    _check_url(url, folder, model)
    if url:
        kept, refused = keep_on_server(url, hashes, ttl, expire, key_of(os.environ)), []
    else:
        selected = select_conversations(_cache(folder), hashes, model)
        kept, refused = keep(selected.targets, ttl, expire), selected.refused
    if as_json:
        _print_json({"conversations": [asdict(c) for c in kept], "refused": [asdict(one) for one in refused]})
    else:
        for c in kept:
            click.echo(f"{c.hash}: {_kept(c)}" + (f"  {console.printable(c.title)}" if c.title else ""))
    _fail(_refusals(refused))


@cache_group.command("stats")
@url_option
@common_options
def stats_command(folder: Path | None, model: str | None, as_json: bool, url: str | None) -> None:
    """Show what the cache takes on disk, and what is in it.

    Damage is shown as far as opening the files shows it; `llama-run cache verify` reads every byte.
    """
    _check_url(url, folder, model)
    if url:
        stats = server_stats(url, key_of(os.environ))
    else:
        stats = cache_stats(_cache(folder), model)
        stats = replace(stats, stored=_ask_holders(stats.stored, lambda url, key: server_stats(url, key).stored))
    if as_json:
        _print_json({**_plain(stats.stored), "bytes": stats.bytes, "disk_free": stats.disk_free})
    else:
        free = console.size(stats.disk_free)
        click.echo(f"{console.printable(stats.cache)}: {console.size(stats.bytes)} on disk, {free} free beside it")
        for one in stats.stored.models:
            _print_stats(one)
    _fail(_errors_of(stats.stored))


def _print_stats(stats: Stats) -> None:
    rows = [
        ("on disk", console.size(stats.bytes)),
        (
            "conversations",
            f"{stats.conversations:,} with {_count(stats.turns, 'turn')}, continued {_count(stats.hits, 'time')}",
        ),
        ("restores", f"{stats.restores or 0:,} since the server started"),
        ("users", str(stats.users)),
        ("pages", f"{stats.pages:,} in {_count(stats.page_files, 'file')}"),
        ("anchors", str(stats.anchors)),
        ("set aside", f"{_count(stats.quarantine_files, 'file')}, {console.size(stats.quarantine_bytes)}"),
        ("unfinished", _count(stats.unfinished_files, "file")),
        ("unusable", f"{_count(stats.unusable_files, 'file')} whose beginning is missing"),
        ("unreadable", _count(stats.unreadable, "file")),
    ]
    rows += [("damaged", f"{n} {REASONS.get(reason, reason)}") for reason, n in sorted(stats.damaged.items())]
    always = ("on disk", "conversations", "pages")
    click.echo(f"\nmodel {stats.fingerprint}")
    for name, text in rows:
        if name in always or not text.startswith("0"):
            click.echo(f"  {name:14} {text}")


@cache_group.command("verify")
@common_options
def verify_command(folder: Path | None, model: str | None, as_json: bool) -> None:
    """Read every byte and compare it with its checksum. Changes nothing.

    Exits with 1 when anything is damaged; the damaged files are printed.
    """
    with _progress("reading (MB)") as progress:
        found = _ask_holders(verify_cache(_cache(folder), model, progress), verify_on_server)
    if as_json:
        _print_json(found)
    else:
        for one in found.models:
            for damage in one.damaged:
                click.echo(f"{console.printable(damage.path)}: {damage.reason}")
    for one in found.models:
        if one.is_sound:
            console.say(f"{one.path}: sound, {_count(one.files, 'file')} read ({console.size(one.bytes)})")
    if not found.models and not _errors_of(found):
        console.say(f"nothing is stored in {found.cache}")
    _fail(
        [UserError(_verdict(one), _remedy(one)) for one in found.models if not one.is_sound] + _errors_of(found),
    )


def _verdict(found: Verified) -> str:
    """It reads, for example: 3 of 412 files fail their checksum in kv-cache/9f1c.../"""
    counts = Counter(damage.reason for damage in found.damaged)
    if found.unreadable:
        counts["io_error"] += found.unreadable
    parts = [f"{n} {REASONS.get(reason, reason)}" for reason, n in counts.most_common()]
    total = found.files + found.unreadable
    if len(parts) == 1:
        n, _, what = parts[0].partition(" ")
        return f"{n} of {total} files {what} in {found.path}/"
    return f"{counts.total()} of {total} files are damaged in {found.path}/: {', '.join(parts)}"


def _remedy(found: Verified) -> str:
    if not found.damaged or all(damage.reason == "io_error" for damage in found.damaged):
        return "check the disk and who owns the files; what cannot be read is evaluated again, nothing else is lost"
    return "`llama-run cache gc --corrupt` sets them aside; those prompts are evaluated again, nothing else is lost"


@cache_group.command("gc")
@click.option("--corrupt", is_flag=True, help="Read every byte and set damaged files aside; the next gc removes them.")
@common_options
def gc_command(folder: Path | None, model: str | None, as_json: bool, corrupt: bool) -> None:
    """Remove what nothing can use, and say what that freed.

    That is: what was set aside as damaged, files of a save that was cut off, pages whose beginning is missing, and
    conversations that have expired. No other sound conversation is touched.
    """
    if corrupt:
        with _progress("reading (MB)") as progress:
            done = set_damaged_aside(_cache(folder), model, progress)
    else:
        done = _ask_holders(collect(_cache(folder), model), collect_through)
    if as_json:
        plain = _plain(done)
        plain["models"] = [{**asdict(one), "bytes_freed": one.bytes_freed} for one in done.models]
        _print_json({**plain, "bytes_freed": sum(one.bytes_freed for one in done.models)})
    else:
        for one in done.models:
            _print_collected(one, corrupt)
        if not done.models and not _errors_of(done):
            console.say(f"nothing is stored in {done.cache}")
    _fail(_errors_of(done))


def _print_collected(one: Collected, corrupt: bool) -> None:
    text = f"{one.fingerprint}: {console.size(one.bytes_freed)} freed, {console.size(one.bytes_after)} left"
    if corrupt:
        text += f"; {_count(len(one.damaged), 'damaged file')} set aside"
    click.echo(text)
    for damage in one.damaged:
        console.say(f"{'set aside' if corrupt else 'removed'}: {console.printable(damage.path)} ({damage.reason})")
    if one.quarantine_bytes:
        console.say(f"`llama-run cache gc` removes what is set aside: {console.size(one.quarantine_bytes)}")


@cache_group.command("rm")
@click.argument("hashes", metavar="[HASH]...", nargs=-1, shell_complete=complete_conversation)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Remove everything, of all models and users. Without --model and --cache-ssd also the logs of servers that no "
    "longer run.",
)
@click.option("--user", metavar="ID", help="Remove everything of one user, by the id that requests give.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@common_options
def rm_command(
    folder: Path | None,
    model: str | None,
    as_json: bool,
    hashes: tuple[str, ...],
    everything: bool,
    user: str | None,
    yes: bool,
) -> None:
    """Remove conversations from the cache, by their hash or its first digits (see `llama-run cache ls`).

    Only what no other conversation needs is freed. Prompts that come back are evaluated again. A hash that several
    models or users have means all of them; --model narrows it down.
    """
    if sum((bool(hashes), everything, user is not None)) != 1:
        raise click.UsageError("give the hashes of conversations, or --all, or --user ID")
    cache = _cache(folder)
    logs: list[Path] = []
    if everything:
        selected = select_all(cache, model)
        home = find_home()
        # Logs hold words of prompts, of whichever model; another folder has nothing to do with them.
        if model is None and cache.resolve() == usual_cache(home, os.environ).resolve():
            logs = idle_logs(home.logs)
    elif user is not None:
        selected = select_user(cache, user, model)
    else:
        selected = select_conversations(cache, hashes, model)
    if (selected.targets or logs) and not yes:
        _confirm(selected.targets, logs)
    done = remove(cache, selected, logs)
    if as_json:
        _print_json(done)
    elif selected.targets or logs:
        click.echo(f"{console.size(done.bytes_freed)} freed, {_what(done.conversations, done.logs)} removed")
    elif not done.refused:
        console.say(f"nothing is stored in {cache}")
    if everything:
        for other in named_caches(find_home(), CACHE_FLAG):
            if other.is_dir() and other.resolve() != cache.resolve():
                console.say(f"llama-run.toml names {other} as well, which stays; --cache-ssd means that one")
    _fail(_refusals(done.refused))


def _what(conversations: Sequence[object], logs: Sequence[object]) -> str:
    return _count(len(conversations), "conversation") + (f" and {_count(len(logs), 'log')}" if logs else "")


def _confirm(targets: Sequence[Target], logs: Sequence[Path]) -> None:
    shown = 10
    listed = [(target.model.name, c) for target in targets for c in target.conversations]
    n = len(listed)
    n_bytes = sum(target.n_bytes for target in targets) + sum(log.stat().st_size for log in logs)
    what = f"{_what(listed, logs)}, {console.size(n_bytes)}"
    if not console.is_interactive():
        raise UserError(f"this would remove {what}", "add --yes to do it without being asked")
    for fingerprint, c in listed[:shown]:
        user = f", user {c.user[:8]}" if c.user else ""
        console.say(
            f"  {c.hash}: {_count(c.turns, 'turn')}, {_count(c.tokens, 'token')} (model {fingerprint[:8]}{user})"
        )
    if n > shown:
        console.say(f"  and {n - shown} more")
    if not click.confirm(f"Remove {what}?", err=True):
        raise click.Abort


T = TypeVar("T")


def _ask_holders(found: Visited[T], ask_one: Callable[[str, str | None], Visited[T]]) -> Visited[T]:
    """Asks the servers that have models open for what could not be read; what no server tells stays held."""
    models, held = list(found.models), []
    for one in found.held:
        server = server_of(one)
        if server is None:
            held.append(one)
            continue
        try:
            models += ask_one(server.url, server.key).models
        except UserError as error:
            _say_why(server.url, error)
            held.append(one)
    return replace(found, models=models, held=held)


def _say_why(url: str, error: UserError) -> None:
    """It may be loading or stopping, or its disk refuses."""
    console.say(": ".join(part for part in (url, error.message, error.hint) if part))


def _cache(folder: Path | None) -> Path:
    return usual_cache(find_home(), os.environ) if folder is None else folder


def _check_url(url: str | None, folder: Path | None, model: str | None) -> None:
    if url and (folder is not None or model is not None):
        raise click.UsageError("--url asks a server, which has one folder and one model; leave the others out")


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


@contextmanager
def _progress(label: str) -> Iterator[Progress]:
    """It is made at the first report: nothing is drawn for a folder that is refused, or read at once."""
    shown: list[console.Progress] = []

    def update(done: int, total: int) -> None:
        if not shown:
            shown.append(console.Progress(label, console.STEPS))
        shown[0].reach(done // 1_000_000, max(1, total // 1_000_000))

    try:
        yield update
    finally:
        for progress in shown:
            progress.close()


def _plain(data: Any) -> dict[str, Any]:
    plain: dict[str, Any] = asdict(data)
    return plain


def _print_json(data: Any) -> None:
    click.echo(json.dumps(data if isinstance(data, dict) else _plain(data), indent=2))


def _errors_of(visited: Visited[Any]) -> list[UserError]:
    """Why some of the models have no result."""
    cache = Path(visited.cache)
    held = [HeldError(Model(cache, bytes.fromhex(one.fingerprint)), one) for one in visited.held]
    return [*held, *_refusals(visited.refused)]


def _refusals(refused: Sequence[Refusal]) -> list[UserError]:
    return [UserError(one.message, one.hint) for one in refused]


def _fail(errors: Sequence[UserError]) -> None:
    """What could be done is done and shown; all that could not is said, and the exit code tells."""
    for error in errors[:-1]:
        console.show_error(error)
    if errors:
        raise errors[-1]
