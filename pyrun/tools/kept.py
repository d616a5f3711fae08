"""Where a server keeps what people told it: the folders that no tool may reach, wherever they lie."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

from pyrun.server.command import CACHE_FLAG, CACHE_VARIABLE, SHARED_FLAG, SPOOL_FLAG, SPOOL_VARIABLE
from pyrun.server.words import spelled

# Flags that name such a folder, each with llama-server's own variable for it.
FOLDERS = {CACHE_FLAG: CACHE_VARIABLE, SHARED_FLAG: "LLAMA_ARG_CACHE_SSD_SHARED", SPOOL_FLAG: SPOOL_VARIABLE}


def kept_folders(words: Sequence[str], environment: Mapping[str, str]) -> list[Path]:
    """All that a server's words and variables name, also those that others overrule. An empty one means none."""
    named = [value for word, value in itertools.pairwise(words) if spelled(word) in FOLDERS]
    named += [environment.get(variable, "") for variable in FOLDERS.values()]
    return list(dict.fromkeys(Path(name).absolute() for name in named if name))
