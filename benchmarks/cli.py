"""Has the command line of `benchmark`. It parses and prints; the work is in run.py."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from benchmarks import compare as comparing
from benchmarks import interrupt, plots, report
from benchmarks.bench import OFF, SIZES, SLOTS, UPSTREAM, Options
from benchmarks.results import is_url, model_folders
from benchmarks.run import INTERRUPTED, Request, run
from benchmarks.scenarios.agent import LEAST_PREFIX
from benchmarks.scenarios.restart import size_of
from pyrun import console
from pyrun.errors import UserError
from pyrun.extras import explained
from pyrun.home import find_home

DEFAULT = "restart"
ALL = ("restart", "agent", "fleet")


@dataclass(frozen=True)
class Invocation:
    words: tuple[str, ...] = ()  # all that was typed
    flags: tuple[str, ...] = ()  # what stands behind `--`: llama-server gets it


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Without a command it is `restart` over the models found. Everything after `--` goes to every llama-server.",
)
def cli() -> None:
    """Measures llama-run on this machine, against what you would use instead."""


FOLDER = click.Path(path_type=Path, file_okay=False)
PROGRAM = click.Path(path_type=Path, dir_okay=False)
COUNT = click.IntRange(min=1)


def _option(name: str, help_text: str, **settings: Any) -> click.Option:
    return click.Option([f"--{name}"], help=help_text, show_default="default" in settings, **settings)


COMMON = (
    _option(
        "model",
        "A path, a name in models/ or a part of one; may be given several times (default: all in models/, else the "
        "built-in one).",
        multiple=True,
    ),
    _option("backend", "cpu, vulkan, rocm, cuda (default: those that are built).", multiple=True, metavar="NAME"),
    _option("ctx", "Context size of a slot (default: what is needed).", type=click.IntRange(min=256)),
    _option(
        "tokens",
        "Length of an answer (default: restart and load 128, agent and fleet 48, swarm 32, herd 8, chat varies).",
        type=COUNT,
    ),
    _option(
        "peers",
        f"What to measure beside it: {OFF} (ours, without the cache), {UPSTREAM} (unpatched, from the same source), "
        f"{SLOTS} (the same, with its slot saved and restored by hand), or the URL of any server with OpenAI's API.",
        metavar="LIST",
    ),
    _option("out", "Where results go (default: benchmarks/results/YYYYMMDD-HHMM).", type=FOLDER, metavar="DIR"),
    _option(
        "cache-folder",
        "Where the servers keep state meanwhile: the disk that is measured (default: .cache/ in the clone).",
        type=FOLDER,
        metavar="DIR",
    ),
    _option("server", "Our llama-server (default: the one that was built).", type=PROGRAM, metavar="PATH"),
    _option("upstream", "An unpatched llama-server (default: it is built).", type=PROGRAM, metavar="PATH"),
)
SIZE_LIST = _option(
    "sizes",
    "Lengths of prompts, by name or in tokens. What does not fit the context is left out.",
    default=",".join(SIZES),
    metavar="LIST",
)
REPEAT = _option("repeat", "Rounds; medians and spreads are over these.", type=COUNT, default=3)
DAMAGE = _option(
    "damage", "Change bytes in the stored files before each warm start: the run must end as invalid.", is_flag=True
)
PREFIX = _option(
    "prefix",
    "Length of the static beginning (default: agent 4000, fleet, swarm and herd 2000, load 1000).",
    type=click.IntRange(min=LEAST_PREFIX),
    metavar="TOKENS",
)
CONVERSATIONS = _option("conversations", "How many (default: chat 6, fleet 16).", type=COUNT, metavar="N")
TURNS = _option("turns", "Of each conversation.", type=COUNT, default=2)
CHATS = _option(
    "chats", "Real conversations to replay, as JSON (default: generated ones).", type=PROGRAM, metavar="FILE"
)
CLIENTS = _option("clients", "At once.", type=COUNT, default=4)
REQUESTS = _option("requests", "Of each client, one after the other.", type=COUNT, default=4)
HERD = _option("clients", "At once, each with a slot.", type=COUNT, default=8)
SWARM = _option("clients", "Agents at work.", type=COUNT, default=12)
SWARM_TURNS = _option("requests", "Turns of each agent.", type=COUNT, default=5)
SWARM_SLOTS = _option("slots", "For all agents.", type=COUNT, default=4)


def _add_scenario(name: str, help_text: str, *own: click.Option) -> None:
    def callback(**given: Any) -> None:
        call = click.get_current_context().find_object(Invocation) or Invocation()
        _run(call, ALL if name == "all" else (name,), given)

    cli.add_command(click.Command(name, callback=callback, params=[*own, *COMMON], help=help_text))


_add_scenario("restart", "Time to the first token, cold and after a restart.", SIZE_LIST, REPEAT, DAMAGE)
_add_scenario("agent", "An agent's session of eleven turns, with a crash in the middle.", PREFIX)
_add_scenario("chat", "Conversations that take turns: time to the first token by turn.", CONVERSATIONS, CHATS)
_add_scenario("fleet", "Many conversations with one system prompt: bytes and times.", PREFIX, CONVERSATIONS, TURNS)
_add_scenario("load", "Several clients at once: throughput, percentiles, errors.", PREFIX, CLIENTS, REQUESTS)
_add_scenario(
    "swarm",
    "More agents than slots: how long all of their work takes.",
    PREFIX,
    SWARM,
    SWARM_TURNS,
    SWARM_SLOTS,
    REPEAT,
)
_add_scenario("herd", "Many clients with one new beginning at once: who evaluates it?", PREFIX, HERD, REPEAT)
_add_scenario(
    "all", "restart, agent and fleet, with upstream beside it.", SIZE_LIST, REPEAT, PREFIX, CONVERSATIONS, TURNS
)


@cli.command("report")
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
def report_command(folder: Path) -> None:
    """Write the tables and draw the plots of a run again."""
    for each in model_folders(folder):
        report.write_model_report(each)
    valid = report.write_run_report(folder)
    report.show(folder)
    if cut_off := report.cut_off(folder):
        console.say(cut_off)
    if not plots.can_draw():
        console.say(f"plots were skipped: {plots.HOW_TO_GET}")
    sys.exit(0 if valid else 1)


@cli.command("compare")
@click.argument("a", type=click.Path(path_type=Path), metavar="A")
@click.argument("b", type=click.Path(path_type=Path), metavar="B")
def compare_command(a: Path, b: Path) -> None:
    """Two runs side by side: what became faster or slower."""
    report.print_table(comparing.compare(a, b))
    for note in comparing.notes(a, b):
        console.say(f"note: {note}")


def _run(call: Invocation, scenarios: tuple[str, ...], given: dict[str, Any]) -> None:
    sizes = _list(given.pop("sizes", "small"))
    peers = _list(given.pop("peers") or (UPSTREAM if scenarios == ALL else ""))
    if not sizes:
        raise UserError("--sizes names no size", f"sizes are {', '.join(SIZES)}, or a number of tokens")
    for size in sizes:
        size_of(size)
    for peer in peers:
        if peer not in (OFF, UPSTREAM, SLOTS) and not is_url(peer):
            raise UserError(f"there is no peer {peer!r}", f"peers are {OFF}, {UPSTREAM}, {SLOTS}, or a URL")
    request = Request(
        scenarios=scenarios,
        models=given.pop("model"),
        backends=given.pop("backend"),
        server=given.pop("server"),
        out=given.pop("out"),
        cache_folder=given.pop("cache_folder"),
        command=shlex.join(["benchmark", *call.words]),
        options=Options(sizes=sizes, peers=peers, flags=call.flags, **given),
    )
    sys.exit(run(find_home(), request))


def _list(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def with_default(words: Sequence[str]) -> list[str]:
    """Without a command, `restart` is meant."""
    if words and not words[0].startswith("-"):
        if words[0] not in cli.commands:
            raise UserError(f"there is no command {words[0]!r}", f"commands are {', '.join(cli.commands)}")
        return list(words)
    asks_help = any(word in ("-h", "--help") for word in words)
    return list(words) if asks_help else [DEFAULT, *words]


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script enters here."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    cut = words.index("--") if "--" in words else len(words)
    call = Invocation(tuple(words), tuple(words[cut + 1 :]))
    # A polite kill ends like Ctrl-C: servers are stopped, and what is done is kept.
    interrupt.heed()
    try:
        cli.main(with_default(words[:cut]), prog_name="benchmark", standalone_mode=False, obj=call)
    except (UserError, ImportError) as error:
        known = explained(error)
        console.show_error(known)
        sys.exit(known.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        console.say("interrupted")
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
