"""Has `llama-run config`, which shows the settings of llama-run.toml: what they are, and where each comes from."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from pyrun import console
from pyrun.cli.defaults import (
    ROOT_TABLES,
    SERVER_ONLY,
    VARIABLES,
    WARM_FILES,
    Key,
    command_defaults,
    default_of,
    keys_of,
    root_defaults,
    root_keys,
)
from pyrun.home import Home, find_home
from pyrun.server.words import without_secrets
from pyrun.settings import read_settings, table_of, tables_of_models

OWN_READERS = ("tools",)  # its rules are added to those of the flags, and docs/tools.md tells of it


@dataclass(frozen=True)
class Shown:
    table: str
    name: str
    value: Any
    source: str


@click.group("config")
def config_group() -> None:
    """Show the settings of llama-run.toml, and an example of it."""


@config_group.command("show")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
@click.pass_context
def show_command(context: click.Context, as_json: bool) -> None:
    """Show every setting of a server, and what else is set, with where it comes from.

    A flag counts more than a variable of the environment, that more than the file, and that more than the profile which
    suits model and machine.
    """
    home = find_home()
    found = list(shown_settings(context.find_root().command, home, dict(os.environ)))
    if as_json:
        click.echo(json.dumps([asdict(one) for one in found], indent=2))
        return
    for line in console.columns([(f"{one.table}.{one.name}", _text(one.value), one.source) for one in found]):
        click.echo(line)
    console.say(f"{home.settings}{'' if home.settings.exists() else ' (there is none)'}")


@config_group.command("example")
@click.pass_context
def example_command(context: click.Context) -> None:
    """Print a llama-run.toml with every setting, all of them commented out."""
    click.echo(example(context.find_root().command), nl=False)


def shown_settings(root: click.Command, home: Home, environment: dict[str, str]) -> Iterator[Shown]:
    """Reads and checks the whole file."""
    path = home.settings
    settings = read_settings(path)
    root_defaults(root, settings, path, environment)
    for table in ROOT_TABLES:
        content = table_of(settings, table, path)
        for name, key in root_keys(root, table).items():
            yield _shown(table, name, key, content, environment, path)
        for name in SERVER_ONLY if table == "server" else ():
            yield Shown(table, name, *((_hidden(content[name]), path.name) if name in content else (None, "not set")))
    for name, content in tables_of_models(settings, path).items():
        yield from (_set(f"models.{name}", key, value, environment, path) for key, value in content.items())
    for name in settings:
        if name in ROOT_TABLES or name == "models":
            continue
        command = _command(root, name)
        content = table_of(settings, name, path)
        if command is not None and name not in OWN_READERS:
            command_defaults(command, content, f"{path}: [{name}]", path)
        yield from _flat(name, content, path.name)


def _command(root: click.Command, name: str) -> click.Command | None:
    return root.get_command(click.Context(root), name) if isinstance(root, click.Group) else None


def _variable(name: str, environment: dict[str, str]) -> str | None:
    """The one that counts more than the file, where it is set."""
    variable = VARIABLES.get(name, "")
    return variable if environment.get(variable) else None


def _set(table: str, name: str, value: Any, environment: dict[str, str], path: Path) -> Shown:
    if variable := _variable(name, environment):
        # The variable names a folder, so the cache is not off.
        return Shown(table, name, False if name == "no-cache-ssd" else environment[variable], variable)
    return Shown(table, name, _hidden(value), path.name)


def _shown(table: str, name: str, key: Key, content: dict[str, Any], environment: dict[str, str], path: Path) -> Shown:
    if name in content or _variable(name, environment):
        return _set(table, name, content.get(name), environment, path)
    default = default_of(key.option)
    return Shown(table, name, default, "not set" if default is None else "default")


def _flat(prefix: str, table: dict[str, Any], source: str) -> Iterator[Shown]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(f"{prefix}.{name}", value, source)
        else:
            yield Shown(prefix, name, _hidden(value), source)


def _hidden(value: Any) -> Any:
    """An API key among the words for llama-server is nobody's business."""
    return without_secrets(value) if isinstance(value, list) and all(isinstance(word, str) for word in value) else value


def _text(value: Any) -> str:
    return "-" if value is None else console.printable(value if isinstance(value, str) else json.dumps(value))


def example(root: click.Command) -> str:
    """Every setting with what its flag's help says of it."""
    lines = [
        "# llama-run.toml: what you would type again. `llama-run where` says where it belongs, `llama-run config show`",
        "# what counts. A flag counts more than a variable of the environment, and that more than this file.",
    ]
    for table in ROOT_TABLES:
        lines += ["", f"# llama-run --{table}", f"[{table}]"]
        lines += _example_lines(root_keys(root, table))
        if table == "server":
            values = {"model": '"qwen"', "arguments": '["--temp", "0.2"]'}
            for name, text in SERVER_ONLY.items():
                lines += [f"# {text}", f"# {name} = {values[name]}"]
    lines += [
        "",
        "# For models whose name fits, such as qwen3-30b-a3b-Q4_K_M; of several tables that do, the last counts most.",
        '# [models."qwen3*"]',
        "# ctx = 65536",
        '# arguments = ["--temp", "0.7"]',
        "",
        "# Names for files of prompts: `llama-run warm coder` prepares them now, the setting warm at every start.",
        f"# [{WARM_FILES}]",
        '# coder = "prompts/coder.jsonl"',
    ]
    assert isinstance(root, click.Group)
    context = click.Context(root)
    for path, command in _commands(root, context):
        keys = {name: key for name, key in keys_of(command).items() if name != "json"}
        if keys and path != "config":
            lines += ["", f"# llama-run {path.replace('.', ' ')}", f"# [{path}]", *_example_lines(keys)]
    return "\n".join(lines) + "\n"


def _commands(group: click.Group, context: click.Context, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    for name in sorted(group.list_commands(context)):
        command = group.get_command(context, name)
        assert command is not None
        path = f"{prefix}{name}"
        yield path, command
        if isinstance(command, click.Group):
            yield from _commands(command, click.Context(command), f"{path}.")


def _example_lines(keys: dict[str, Key]) -> list[str]:
    lines = []
    for name, key in keys.items():
        lines += [f"# {' '.join((key.option.help or '').split())}", f"# {name} = {_example_value(key.option)}"]
    return lines


def _example_value(option: click.Option) -> str:
    default = default_of(option)
    if default:
        return json.dumps(default)
    if option.is_flag:
        return "true"
    if option.multiple:
        return '["..."]'
    if isinstance(option.type, (click.types.IntParamType, click.types.FloatParamType)):
        return str(getattr(option.type, "min", None) or 1)
    return '"..."'
