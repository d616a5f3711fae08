"""A bundle with the real server in it answers from the folder it was unpacked into."""

from __future__ import annotations

from pathlib import Path

import pytest
from backend import BINARY
from cache_server import smollm2
from helpers import ROOT

from pyrun.build.builder import BuildResult
from pyrun.bundle import make
from pyrun.bundle.make import Wanted, make_bundle
from pyrun.bundle.trial import try_bundle
from pyrun.home import Home

pytestmark = pytest.mark.server


def test_bundle_answers_a_chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make, "build", lambda home, request: BuildResult(BINARY, 0, False))
    made = make_bundle(Home(ROOT), Wanted("cpu", "native", with_model=False), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {made.archive.name}
    tried = try_bundle(made, smollm2())
    assert tried.answer and tried.seconds > 0
