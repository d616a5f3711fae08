"""A tree like a real system, and a running one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from ttm_system import Live, System, ttm


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> System:
    monkeypatch.delenv("LLAMA_GTT_SIZE", raising=False)
    monkeypatch.setattr(os, "fsync", lambda file: None)
    system = System(tmp_path / "root")
    system.put({"proc/meminfo": "MemTotal:       32716000 kB\nMemFree: 1 kB\n"})
    system.put({"proc/sys/kernel/osrelease": "6.18.2-arch1-1\n", "usr/bin/update-grub": ""})
    return system


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> Live:
    live = Live()
    initialise = ttm.Machine.__init__

    def as_live(self: Any, root: Path) -> None:
        initialise(self, root)
        self.live = True

    monkeypatch.setattr(ttm.Machine, "__init__", as_live)
    monkeypatch.setattr(ttm, "run_command", live.run)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return live
