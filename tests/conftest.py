"""What all tests share: no test reads or writes the user's own settings."""

from __future__ import annotations

import pytest

pytest_plugins = ["server_fixtures", "cache_server"]


@pytest.fixture(autouse=True)
def isolated_user(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    for name in ("LLAMA_RUN_HOME", "LLAMA_API_KEY", "LLAMA_ARG_CACHE_SSD", "CXX"):
        monkeypatch.delenv(name, raising=False)
