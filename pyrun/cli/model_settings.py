"""What llama-run.toml says of one model, for a server that is about to start."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from pyrun.cli.defaults import model_defaults, not_overruled, warm_file
from pyrun.cli.server import ServerOptions

WARM_FLAG = "--cache-ssd-warm"  # llama-server's own
FIELDS = {
    "backend": "backend",
    "host": "host",
    "port": "port",
    "ctx": "ctx",
    "cache_ssd": "cache",
    "no_cache_ssd": "no_cache",
    "warm": "warm",
}


def with_model_settings(
    root: click.Command,
    options: ServerOptions,
    model: str,
    settings: dict[str, Any],
    file: Path,
    given: Collection[str],
    environment: Mapping[str, str],
) -> ServerOptions:
    """The model's own settings in place of those for all; `given` are the flags that were typed, which stay."""
    values, words = model_defaults(root, settings, file, model, environment)
    typed = {flag.lstrip("-").replace("-", "_") for flag in given}
    if typed & {"cache_ssd", "no_cache_ssd"}:
        typed |= {"cache_ssd", "no_cache_ssd"}
    elif values.get("no_cache_ssd"):
        values["cache_ssd"] = None
    elif "cache_ssd" in values:
        values["no_cache_ssd"] = False
    changes: dict[str, Any] = {
        FIELDS[name]: value for name, value in values.items() if name in FIELDS and name not in typed
    }
    if "noauto" in values and "noauto" not in typed:
        changes["auto"] = not values["noauto"]
    at = options.n_set  # what is typed behind `--` stays last
    words = not_overruled(words, given)
    chosen = replace(options, **changes, extra=(*options.extra[:at], *words, *options.extra[at:]))
    if chosen.warm is None:
        return chosen
    return replace(chosen, extra=(WARM_FLAG, str(warm_file(settings, file, chosen.warm)), *chosen.extra))
