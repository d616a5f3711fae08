"""The backend that the tests drive the real server on: the CPU, or what LLAMA_RUN_TEST_BACKEND names.

    LLAMA_RUN_TEST_BACKEND=vulkan pytest tests/server/test_restart.py "tests/server/test_restart_matrix.py" -k dense

With LLAMA_RUN_TEST_WORKERS=2, each server of cache_server.py has its model on that many workers, upstream's rpc-server:

    LLAMA_RUN_TEST_WORKERS=2 pytest tests/server/test_restart_matrix.py

Vulkan runs on the processor itself where there is no graphics card, at one to a hundred tokens a second for SmolLM2:
take the toy models first. Mesa 25 runs everything, but on two busy cores it may compile a model's shaders for longer
than a test may take: run that test again, Mesa has kept them. Mesa 22, which is Debian 12's, ends the server in the
middle of some. What is not built or has no device is skipped, with the reason.
"""

from __future__ import annotations

import os
from functools import cache

import pytest
from helpers import ROOT

from pyrun.build.builder import take_snapshot
from pyrun.home import Home
from pyrun.machine.backends import check_backends, runtime_environment
from pyrun.machine.describe import describe

BACKEND = os.environ.get("LLAMA_RUN_TEST_BACKEND") or "cpu"
WORKERS = int(os.environ.get("LLAMA_RUN_TEST_WORKERS") or 0)
PATIENCE = 1 if BACKEND == "cpu" else 6  # how much longer things may take: shaders are compiled when a model is loaded
# Threads of a server wait for each other by spinning: on few cores, with tests beside them, two may take twenty times
# as long as one.
ONE_THREAD = {"LLAMA_ARG_THREADS": "1"}
BINARY = Home(ROOT).server_binary(BACKEND)


def require_backend() -> None:
    if BACKEND == "cpu":
        assert BINARY.exists(), "run `./llama-run build` first"
    elif reason := _why_not():
        pytest.skip(reason)


@cache
def server_environment() -> dict[str, str]:
    """What a server of this backend is started with, where the launcher does not do it."""
    return runtime_environment(describe(take_snapshot(Home(ROOT), BACKEND)), BACKEND)


@cache
def _why_not() -> str | None:
    if not BINARY.exists():
        return f"{BACKEND} is not built: `./llama-run build --backend {BACKEND}`"
    snapshot = take_snapshot(Home(ROOT), BACKEND)
    machine = describe(snapshot)
    here = next(backend for backend in check_backends(snapshot, machine) if backend.name == BACKEND)
    if BACKEND == "vulkan" and machine.software_vulkan is not None:
        return None
    if not here.has_device or here.to_run:
        return f"no device for {BACKEND}: {', '.join(m.what for m in here.to_run) or here.note or 'none was found'}"
    return None
