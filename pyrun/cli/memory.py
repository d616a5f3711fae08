"""`llama-run memory`: looks into the memory and changes it. Data goes to stdout, everything else to stderr."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import click

from pyrun import console
from pyrun.errors import UserError
from pyrun.home import find_home
from pyrun.memory.intake import take_in
from pyrun.memory.limit import memory_limit
from pyrun.memory.recall import UserMemory
from pyrun.memory.repair import check, repair
from pyrun.memory.spool import DAMAGED
from pyrun.memory.store import Entry, Memory
from pyrun.memory.transfer import export_lines, import_lines

folder_option = click.option(
    "--memory",
    "folder",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="The memory's folder (default: memory/ in the clone).",
)
user_option = click.option("--user", default="", metavar="ID", help="Whose memory (default: of those who give no id).")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")


@click.group("memory")
def memory_group() -> None:
    """Search what left a conversation, and keep facts.

    The memory holds what people said: whoever can read its file can read it. Each user's is apart from all others'.
    """


@memory_group.command("search")
@click.argument("words", nargs=-1, required=True)
@click.option("--limit", default=10, show_default=True, type=click.IntRange(1, 1000))
@json_option
@user_option
@folder_option
def search_command(words: tuple[str, ...], limit: int, as_json: bool, user: str, folder: Path | None) -> None:
    """Find messages, answers and facts by their words, the best and most recent first."""
    with _opened(folder) as memory:
        found = UserMemory(memory, user).search(" ".join(words), limit)
    if as_json:
        _print_json([{**asdict(one.entry), "snippet": one.snippet, "score": one.score} for one in found])
        return
    for one in found:
        click.echo(f"{_title(one.entry)}\n    {_line(one.snippet)}")
    if not found:
        console.say("nothing was found")


@memory_group.command("show")
@click.argument("conversation", required=False)
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1))
@json_option
@user_option
@folder_option
def show_command(conversation: str | None, limit: int, as_json: bool, user: str, folder: Path | None) -> None:
    """Show what is remembered: the messages of CONVERSATION as they were said, or what came last."""
    with _opened(folder) as memory:
        entries = UserMemory(memory, user).show(conversation, limit)
    if as_json:
        _print_json([asdict(entry) for entry in entries])
        return
    for entry in entries:
        click.echo(_title(entry))
        for line in (entry.text + ("\n" + entry.answer if entry.answer else "")).splitlines():
            click.echo(f"    {console.printable(line)}")
    if not entries:
        console.say("nothing is remembered")


@memory_group.command("facts")
@json_option
@user_option
@folder_option
def facts_command(as_json: bool, user: str, folder: Path | None) -> None:
    """List the facts."""
    with _opened(folder) as memory:
        facts = UserMemory(memory, user).facts()
    if as_json:
        _print_json([{"name": f.text, "value": f.answer, "at": f.at, "source": f.source} for f in facts])
        return
    for fact in facts:
        source = f", from {console.printable(fact.source)}" if fact.source else ""
        click.echo(f"{console.printable(fact.text)}: {_line(fact.answer)} ({_age(fact)}{source})")
    if not facts:
        console.say("no facts are known")


@memory_group.command("set")
@click.argument("name")
@click.argument("value")
@click.option("--source", default="you", show_default=True, help="Where it is from.")
@user_option
@folder_option
def set_command(name: str, value: str, source: str, user: str, folder: Path | None) -> None:
    """Remember VALUE as the fact NAME, in place of what it was."""
    with _opened(folder) as memory:
        UserMemory(memory, user).set_fact(name, value, source)


@memory_group.command("forget")
@click.option("--fact", metavar="NAME")
@click.option("--conversation", metavar="ID")
@click.option("--entry", type=int, metavar="N", help="The number that `search` and `show` print.")
@click.option("--all", "everything", is_flag=True, help="Everything of this user.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@user_option
@folder_option
def forget_command(
    fact: str | None,
    conversation: str | None,
    entry: int | None,
    everything: bool,
    yes: bool,
    user: str,
    folder: Path | None,
) -> None:
    """Forget a fact, an entry, a conversation or everything. It does not come back, also not from a history."""
    if sum((fact is not None, conversation is not None, entry is not None, everything)) != 1:
        raise click.UsageError("give one of --fact, --conversation, --entry and --all")
    if (conversation is not None or everything) and not yes:
        if not console.is_interactive():
            raise UserError("this would forget more than one thing", "add --yes to do it without being asked")
        click.confirm("forget it?", abort=True, err=True)
    with _opened(folder, is_forgetting=True) as memory:
        own = UserMemory(memory, user)
        if fact is not None:
            n = int(own.forget_fact(fact))
        elif conversation is not None:
            n = own.forget_conversation(conversation)
        elif entry is not None:
            n = own.forget_entry(entry)
        else:
            n = own.forget_all()
    if n == 0:
        raise UserError("there was nothing left to forget", "`llama-run memory show` lists what is remembered")
    console.say(f"forgotten: {n}")


@memory_group.command("export")
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True), default="-")
@user_option
@folder_option
def export_command(file: Path, user: str, folder: Path | None) -> None:
    """Write everything of a user as lines of JSON, to FILE or stdout. A new file is for its owner alone."""
    with _opened(folder) as memory:
        lines = export_lines(UserMemory(memory, user))
        if str(file) == "-":
            for line in lines:
                click.echo(line)
            return
        with open(file, "w", encoding="utf-8", opener=_private) as out:
            out.writelines(line + "\n" for line in lines)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


@memory_group.command("import")
@click.argument("file", type=click.File("r", encoding="utf-8", errors="replace"), default="-")
@user_option
@folder_option
def import_command(file: TextIO, user: str, folder: Path | None) -> None:
    """Add what `export` wrote, from FILE or stdin. What is there already is not added again."""
    with _opened(folder) as memory:
        done = import_lines(UserMemory(memory, user), file)
    console.say(
        f"{done.n_new} new, {done.n_replaced} in place of older values, {done.n_known} known already, "
        f"{done.n_older} left out because the value here is newer"
    )


@memory_group.command("stats")
@click.option("--verify", is_flag=True, help="Read and check everything.")
@click.option("--repair", "mend", is_flag=True, help="Check everything, and mend what is wrong.")
@json_option
@user_option
@folder_option
def stats_command(verify: bool, mend: bool, as_json: bool, user: str, folder: Path | None) -> None:
    """Show what the memory holds and takes."""
    place = folder or find_home().memory
    if mend:
        _repair(place)
    with _opened(place) as memory:
        own = UserMemory(memory, user)
        problems = check(memory) if verify else []
        kinds = own.counts()
        stats = {
            "file": str(memory.path),
            "bytes": memory.used_bytes(),
            "max_bytes": memory.max_bytes,
            "messages": kinds["message"],
            "pairs": kinds["pair"],
            "facts": kinds["fact"],
            "conversations": [{"conversation": name, "messages": n, "at": at} for name, n, at in own.conversations()],
            "damaged_spool_files": len(list((memory.spool / DAMAGED).glob("*"))),
        }
    if as_json:
        _print_json({**stats, "problems": problems})
    else:
        _print_stats(stats)
    if problems:
        raise UserError(f"{memory.path} is damaged: {problems[0]}", "`llama-run memory stats --repair` mends it")


def _print_stats(stats: dict[str, Any]) -> None:
    click.echo(f"{stats['file']}: {console.size(stats['bytes'])} of {console.size(stats['max_bytes'])}")
    click.echo(f"{stats['messages']} messages, {stats['pairs']} questions with answers, {stats['facts']} facts")
    for row in stats["conversations"]:
        age = console.duration(max(0.0, time.time() - row["at"] / 1000))
        click.echo(f"  {row['conversation']}: {row['messages']} messages, the last {age} ago")
    if stats["damaged_spool_files"]:
        console.say(f"warning: {stats['damaged_spool_files']} damaged files lie in the spool's folder {DAMAGED}/")


def _repair(place: Path) -> None:
    done = repair(place)
    for problem in done.problems:
        console.say(f"was wrong: {console.printable(problem)}")
    if done.kept:
        left_out = f", {done.n_left_out} rows made no sense and were left out" if done.n_left_out else ""
        console.say(f"{done.n_saved} entries were saved{left_out}; the broken file is {done.kept}")
    elif done.problems:
        console.say("the index of words was made anew; nothing is lost")


@contextmanager
def _opened(folder: Path | None, is_forgetting: bool = False) -> Iterator[Memory]:
    """With what lies in the spool taken in."""
    home = find_home()
    with Memory(folder or home.memory, memory_limit(home.settings)) as memory:
        if is_forgetting:  # what a repair keeps in the spool would be forgotten by nobody
            memory.ensure_whole()
        taken = take_in(memory)
        if taken.n_damaged:
            console.say(f"warning: {taken.n_damaged} damaged files were set aside in {memory.spool / DAMAGED}")
        if taken.trouble:
            console.say(f"warning: a file of the spool stays there for now: {taken.trouble}")
        yield memory


def _title(entry: Entry) -> str:
    where = f" of conversation {entry.conversation}, {entry.role}" if entry.kind == "message" else ""
    return f"#{entry.id} {entry.kind}{console.printable(where)}, {_age(entry)}"


def _age(entry: Entry) -> str:
    return f"{console.duration(max(0.0, time.time() - entry.at / 1000))} ago"


def _line(text: str) -> str:
    return console.printable(" ".join(text.split()))


def _print_json(data: Any) -> None:
    click.echo(json.dumps(data, indent=2, ensure_ascii=False))
