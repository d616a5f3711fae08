"""A folder for one cache, and a clone without logs."""

from __future__ import annotations

from pathlib import Path

import pytest
from stores import (
    make_clone,
)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def clone(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without logs: `rm --all` takes those of the clone, too."""
    monkeypatch.setenv("LLAMA_RUN_HOME", str(make_clone(tmp_path_factory.mktemp("clone"))))
