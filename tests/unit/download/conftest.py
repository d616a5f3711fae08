"""A fake hub, and a clone that downloads from it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import huggingface_hub
import pytest
from downloads import NAME, Q4, Q8, Machine
from fakes.hub import FakeHub
from helpers import ROOT

from pyrun.cli import download as cli_download
from pyrun.models.download import carry_out


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    yield
    huggingface_hub.close_session()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    with FakeHub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.add(NAME, {"toy-Q4_K_M.gguf": Q4, "toy-Q8_0.gguf": Q8, "README.md": b"# toy"}, downloads=1234)
        yield hub


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Machine:
    (tmp_path / "llama.cpp").mkdir()
    (tmp_path / "llama.cpp" / "upstream.toml").write_text((ROOT / "llama.cpp" / "upstream.toml").read_text())
    (tmp_path / "models").mkdir()
    monkeypatch.setenv("LLAMA_RUN_HOME", str(tmp_path))
    machine = Machine(tmp_path, capsys)
    monkeypatch.setattr(cli_download, "carry_out", partial(carry_out, pause=machine.pauses.append))
    return machine
