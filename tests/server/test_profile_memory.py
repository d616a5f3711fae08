"""What a profile says that a context takes, against what the real server allocates."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from helpers import ROOT, free_port, wait_until

from pyrun.home import Home
from pyrun.models.facts import model_facts
from pyrun.models.gguf import read_gguf
from toys import ensure

pytestmark = pytest.mark.server

MIB = 1 << 20


@pytest.mark.parametrize("kind", ["f16", "q8_0"])
@pytest.mark.parametrize(
    "name", ["dense", "moe", "mla", "swa-gemma3", "swa-gptoss", "hybrid-moe", "hybrid-mamba", "recurrent"]
)
def test_context_takes_what_was_said(name: str, kind: str, tmp_path: Path) -> None:
    path = ensure(name, ROOT / ".cache" / "toys")
    log = tmp_path / "log"
    binary = str(Home(ROOT).server_binary("cpu"))
    command = [binary, "--model", str(path), "--ctx-size", "4096", "--port", str(free_port())]
    command += ["--cache-type-k", kind, "--cache-type-v", kind, "--no-warmup", "--verbosity", "5", "--fit", "off"]
    with log.open("w") as file, subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT) as server:
        try:
            wait_until(lambda: "listening" in log.read_text() or server.poll() is not None, 60, "it listens")
        finally:
            server.kill()
    sizes = re.findall(r"(?:llama_kv_cache|llama_memory_recurrent): size = +([\d.]+) MiB", log.read_text())
    assert sizes, log.read_text()
    expected = model_facts(name, [read_gguf(path)]).kv_bytes(4096, kind, kind, ubatch=512, slots=4)
    assert sum(map(float, sizes)) == pytest.approx(expected / MIB, abs=0.02)
