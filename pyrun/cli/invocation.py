"""What click does not see of a command line."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Invocation:
    """The words behind `--`, which belong to llama-server."""

    extra: tuple[str, ...] = ()
