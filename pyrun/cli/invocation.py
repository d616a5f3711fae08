"""What click does not see of a command line."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Invocation:
    """The words behind `--`, which belong to llama-server, and llama-run.toml."""

    extra: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    file: Path = Path("llama-run.toml")
