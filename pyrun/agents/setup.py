"""Says what an agent has to be told, in the shape that the agent reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any


class Format(Enum):
    JSON = "json"
    TOML = "toml"
    YAML = "yaml"


@dataclass(frozen=True)
class ConfigFile:
    """Settings to be merged into a file of the agent's.

    In lists of tables, an entry replaces the one whose field `same` is equal, such as the model's name. A new
    one comes first.
    """

    path: Path
    format: Format
    content: Any
    same: str = "name"
    secret: bool = False  # a key stands in it


@dataclass(frozen=True)
class Setup:
    """Everything about one agent: files, environment, and what only a person can do.

    The environment goes with the files, or instead of them where it says all that they say.
    """

    agent: str
    files: tuple[ConfigFile, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    environment_suffices: bool = False
    notes: tuple[str, ...] = ()
