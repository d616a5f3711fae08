"""What all tests share: no test reads or writes the user's own settings."""

from __future__ import annotations

import os
import signal

import hypothesis
import pytest

# How long an example takes says how busy the machine is, and no more.
hypothesis.settings.register_profile(
    "unhurried", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("unhurried")

# A shell ignores Ctrl-C for what it starts in the background, and every child inherits that: tests that send it to one
# would then find that nothing happens.
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["worker_fixtures", "server_fixtures", "cache_server", "tool_fixtures", "memories"]

OURS = ("LLAMA_RUN_COMMAND", "LLAMA_RUN_HOME", "LLAMA_API_KEY", "CXX")
# Where agents have their settings.
AGENTS = (
    "CLAUDE_CONFIG_DIR",
    "CODEX_HOME",
    "CONTINUE_GLOBAL_DIR",
    "LLM_USER_PATH",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
)


@pytest.fixture(autouse=True)
def isolated_user(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    for name in list(os.environ):
        if name in OURS or name in AGENTS or name.startswith("LLAMA_ARG_") or "_OVERRIDE" in name:
            monkeypatch.delenv(name)
    # What tests ask of the disk after a restart must come from there; the tests of reading ahead turn it on.
    monkeypatch.setenv("LLAMA_ARG_CACHE_SSD_READ_AHEAD", "off")
