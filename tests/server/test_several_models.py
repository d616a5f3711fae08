"""Several models behind one address: each goes on where it was when it was swapped out."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from backend import BINARY
from cache_server import Serve, toy
from helpers import ROOT, free_port, wait_until
from stores import make_clone

from pyrun.engine import is_same
from toys.corpus import TEXT

pytestmark = pytest.mark.server

MODELS = ("dense", "hybrid-mamba", "mla")
N_REQUESTS = 15
PROMPTS = [" ".join(TEXT.split()[start : start + 120]) for start in (0, 200)]


@pytest.fixture
def router(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """`llama-run --server --all` with three models in room for two."""
    root = make_clone(tmp_path)
    (root / "llama.cpp" / "build").mkdir()
    (root / "llama.cpp" / "build" / "cpu").symlink_to(BINARY.parents[1])
    (root / "pyrun").symlink_to(ROOT / "pyrun")
    (root / "models").mkdir()
    for name in MODELS:
        (root / "models" / f"{name}.gguf").symlink_to(toy(name))
    monkeypatch.setenv("LLAMA_RUN_HOME", str(root))
    port = free_port()
    words = f"--server --all --backend cpu --no-build --noauto --ctx 2048 --port {port} -- --models-max 2"
    log = tmp_path / "launcher.log"
    with log.open("wb") as output:
        launcher = subprocess.Popen([sys.executable, "-m", "pyrun", *words.split()], stdout=output, stderr=output)
    try:
        wait_until(lambda: "ready at" in log.read_text(), 60, f"it is ready: {log}")
        yield f"http://127.0.0.1:{port}"
    finally:
        launcher.send_signal(signal.SIGTERM)
        assert launcher.wait(60) == 0, log.read_text()


def asked(prompt: str, model: str | None = None) -> dict[str, Any]:
    body: dict[str, Any] = {"prompt": prompt, "n_predict": 8, "temperature": 0, "n_probs": 5}
    return {**body, "model": model} if model else body


def test_models_that_are_swapped_go_on_where_they_were(serve: Serve, router: str) -> None:
    rng = random.Random(7)
    turns = [(name, prompt) for name in MODELS for prompt in PROMPTS]
    turns += [(rng.choice(MODELS), rng.choice(PROMPTS)) for _ in range(N_REQUESTS - len(turns))]
    said: dict[tuple[str, str], Any] = {}
    loaded: list[str] = []
    swaps = 0
    for name, prompt in turns:
        answer = requests.post(f"{router}/completion", json=asked(prompt, name), timeout=120).json()
        assert "timings" in answer, answer
        if name not in loaded:
            swaps += 1
        loaded = [name, *(other for other in loaded if other != name)][:2]
        if (name, prompt) in said:
            assert is_same(answer["completion_probabilities"], said[name, prompt])
            assert answer["timings"]["prompt_n"] <= 8, f"{name} was not restored: {json.dumps(answer['timings'])}"
        said[name, prompt] = answer["completion_probabilities"]
    assert swaps > len(MODELS), "some had to make room, and came back"
    for name in MODELS:
        lone = serve(toy(name), "--ctx-size", "2048")
        for prompt in PROMPTS:
            alone = lone.post("/completion", asked(prompt))
            assert is_same(said[name, prompt], alone["completion_probabilities"])
        lone.process.terminate()
    assert {one["id"] for one in requests.get(f"{router}/v1/models", timeout=20).json()["data"]} >= set(MODELS)
