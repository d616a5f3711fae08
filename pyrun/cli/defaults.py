"""Which settings `llama-run.toml` may hold: the flags of the commands themselves, so that file, help and docs agree.

A command's flags are the keys of the table with its name; those of `llama-run --server` and `--download` have tables of
their own, and so has each model.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from pyrun.errors import UserError
from pyrun.server.words import grouped, spelled
from pyrun.settings import check_names, path_of, table_of, tables_of_models, take, words_of

# Of the flags of llama-run itself, these are settings; the others say what to do now.
ROOT_TABLES = {
    "server": (
        "backend",
        "host",
        "port",
        "ctx",
        "cache-ssd",
        "no-cache-ssd",
        "cache-ssd-shared",
        "context-overflow",
        "warm",
        "with-tools",
        "workers",
        "no-build",
        "noauto",
    ),
    "download": ("quant", "mmproj"),
}
# Settings that are no flag, with what they are.
SERVER_ONLY = {
    "model": "The model to serve where --server names none.",
    "arguments": 'What goes to llama-server, as behind `--`: ["--temp", "0.2"].',
}
# Nobody wants these to happen every time.
NEVER = ("yes", "all", "clean", "export-patches", "into", "reset", "repair", "remove")
# Some tables hold more than flags, and have a reader of their own.
MORE = {"memory": ("limit",), "tools": ("include",)}
WARM_FILES = "warm-files"  # names for files of prompts
FREE = ("models", "providers", WARM_FILES)  # names of the user's own stand in these
# llama-server's own variables count more than the file.
VARIABLES = {
    "host": "LLAMA_ARG_HOST",
    "port": "LLAMA_ARG_PORT",
    "ctx": "LLAMA_ARG_CTX_SIZE",
    "cache-ssd": "LLAMA_ARG_CACHE_SSD",
    "no-cache-ssd": "LLAMA_ARG_CACHE_SSD",
    "cache-ssd-shared": "LLAMA_ARG_CACHE_SSD_SHARED",
    "context-overflow": "LLAMA_ARG_CONTEXT_OVERFLOW",
    "warm": "LLAMA_ARG_CACHE_SSD_WARM",
    "workers": "LLAMA_ARG_RPC",
}
# What a flag of ours is for llama-server: words of the file that say it otherwise give way to one that is typed.
OVERRULED = {
    "--host": ("--host",),
    "--port": ("--port",),
    "--ctx": ("--ctx-size", "-c"),
    "--cache-ssd": ("--cache-ssd",),
    "--no-cache-ssd": ("--cache-ssd",),
    "--cache-ssd-shared": ("--cache-ssd-shared",),
    "--context-overflow": ("--context-overflow",),
    "--warm": ("--cache-ssd-warm",),
    "--workers": ("--rpc",),
}


@dataclass(frozen=True)
class Key:
    """A flag as a setting."""

    name: str  # in the file
    option: click.Option


def keys_of(command: click.Command) -> dict[str, Key]:
    """The flags of a command that stand for a value. What would make it do something else is none of them."""
    found = {}
    for option in command.params:
        if isinstance(option, click.Option) and not option.is_eager:
            name = max(option.opts, key=len).lstrip("-")
            if name not in NEVER:
                found[name] = Key(name, option)
    return found


def default_of(option: click.Option) -> str | int | float | bool | None:
    """What counts where nothing is set; None where that is for the program to find out."""
    default = option.get_default(click.Context(click.Command("llama-run")))
    return default if isinstance(default, (str, int, float, bool)) else None


def root_keys(root: click.Command, table: str) -> dict[str, Key]:
    keys = keys_of(root)
    return {name: keys[name] for name in ROOT_TABLES[table]}


def root_defaults(
    root: click.Command, settings: dict[str, Any], path: Path, given: Mapping[str, str]
) -> dict[str, Any]:
    """The values of the root's own flags, by their parameter's name; `given` is the environment."""
    defaults: dict[str, Any] = {}
    for table in ROOT_TABLES:
        keys = root_keys(root, table)
        content = table_of(settings, table, path)
        where = f"{path}: [{table}]"
        check_names(content, [*keys, *(SERVER_ONLY if table == "server" else ())], where)
        defaults |= _values(keys, content, where, path, given)
    return _with_warm_path(defaults, settings, path)


def command_defaults(command: click.Command, table: dict[str, Any], where: str, path: Path) -> dict[str, Any]:
    """The values of a command's flags and of its own commands', as click takes them."""
    if command.name in FREE:  # The table of that name is not about its flags.
        return {}
    keys = keys_of(command)
    below = command.commands if isinstance(command, click.Group) else {}
    check_names(table, [*keys, *below, *MORE.get(command.name or "", ())], where)
    defaults = _values(keys, table, where, path, {})
    for name, child in below.items():
        if name in table and name not in keys:
            inner = f"{where[:-1]}.{name}]"
            if not isinstance(table[name], dict):
                raise UserError(f"{path}: {name} is no table", f"write it as {inner.rpartition(' ')[2]}")
            defaults[name] = command_defaults(child, table[name], inner, path)
    return defaults


def model_defaults(
    root: click.Command, settings: dict[str, Any], path: Path, model: str, given: Mapping[str, str]
) -> tuple[dict[str, Any], list[str]]:
    """What the tables of a model say: values of flags by their parameter's name, and words for llama-server."""
    keys = root_keys(root, "server")
    values: dict[str, Any] = {}
    words: list[str] = []
    for name, table in tables_of_models(settings, path, model).items():
        where = f"{path}: [models.{name}]"
        values |= _values(keys, table, where, path, given)
        words += words_of(table, where)
    return _with_warm_path(values, settings, path), words


def _with_warm_path(values: dict[str, Any], settings: dict[str, Any], path: Path) -> dict[str, Any]:
    """What is no name of a file of prompts is a path, and counts from the file's folder as every path there."""
    warm = values.get("warm")
    if warm is None or warm in table_of(settings, WARM_FILES, path):
        return values
    return {**values, "warm": str(path_of(warm, path))}


def server_model(settings: dict[str, Any], path: Path) -> str | None:
    found = take(table_of(settings, "server", path), "model", str, f"{path}: [server]")
    return None if found is None else str(found)


def server_words(settings: dict[str, Any], path: Path) -> list[str]:
    return words_of(table_of(settings, "server", path), f"{path}: [server]")


def not_overruled(words: Sequence[str], typed: Collection[str]) -> list[str]:
    """What of the file's words for llama-server is left beside the flags that were typed."""
    gone = {flag for one in typed for flag in OVERRULED.get(one, ())}
    return [word for group in grouped(words) if spelled(group[0]) not in gone for word in group]


def warm_file(settings: dict[str, Any], path: Path, wanted: str) -> Path:
    """The file of prompts that is meant: by its name in [warm-files], or by its path."""
    names = table_of(settings, WARM_FILES, path)
    named = take(names, wanted, str, f"{path}: [{WARM_FILES}]")
    found = Path(wanted).absolute() if named is None else path_of(named, path)
    if not found.is_file():
        near = difflib.get_close_matches(Path(wanted).name, names, n=1, cutoff=0.5) if named is None else []
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UserError(
            f"there is no file {found} with prompts to prepare",
            f"{hint}[{WARM_FILES}] of llama-run.toml gives files names, such as coder = 'prompts/coder.jsonl'",
        )
    return found


def _values(
    keys: Mapping[str, Key], table: dict[str, Any], where: str, path: Path, given: Mapping[str, str]
) -> dict[str, Any]:
    values = {}
    for name, key in keys.items():
        if name in table and not given.get(VARIABLES.get(name, "")):
            assert key.option.name
            values[key.option.name] = _value(key.option, table[name], f"{where}: {name}", path)
    return values


def _value(option: click.Option, value: Any, where: str, path: Path) -> Any:
    """Checks it as click would a flag's, and says where it stands. A path counts from the file's folder."""
    try:
        if option.is_flag and not isinstance(value, bool):
            raise click.BadParameter(f"{value!r} is neither true nor false.")
        if isinstance(option.type, click.Path):
            return path_of(str(value), path)
        context = click.Context(click.Command("llama-run"))
        return option.type_cast_value(context, str(value) if isinstance(value, (int, float)) else value)
    except click.BadParameter as error:
        raise UserError(f"{where} cannot be used: {error.message}", "mend it there, or remove the line") from error
