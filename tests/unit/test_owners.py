"""Which stored state is whose: what a ready server tells is kept, and `--list-models` counts by it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fakes.models import gguf_bytes
from helpers import ROOT

from pyrun import _kernels
from pyrun.cache.owners import FILE, fingerprints_of, owners, remember
from pyrun.cli.main import main

ONE, TWO = "f1" + "0" * 30, "f2" + "0" * 30


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "llama.cpp").mkdir()
    (tmp_path / "llama.cpp" / "upstream.toml").write_text((ROOT / "llama.cpp" / "upstream.toml").read_text())
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a.gguf").write_bytes(gguf_bytes())
    (tmp_path / "models" / "b.gguf").write_bytes(gguf_bytes())
    (tmp_path / "kv-cache").mkdir()
    monkeypatch.setenv("LLAMA_RUN_HOME", str(tmp_path))
    return tmp_path


def fill(cache: Path, fingerprint: str, n_conversations: int) -> None:
    with _kernels.Store(str(cache), bytes.fromhex(fingerprint), page_size=16, written_by="test") as store:
        for seed in range(n_conversations):
            store.save([seed * 100 + n for n in range(40)], lambda p0, p1: bytes(8 * (p1 - p0)), backend="cpu")


def stored(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    main(["--list-models", *arguments])
    table = capsys.readouterr().out.splitlines()
    column = table[0].index("stored")
    assert table[0].split() == ["model", "architecture", "size", "quant", "context", "stored", "fits"]
    return [line[column : column + len("stored")].strip() for line in table[1:]]


def test_conversations_are_counted_for_their_model(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache, a = clone / "kv-cache", clone / "models" / "a.gguf"
    fill(cache, ONE, 3)
    assert stored(capsys) == ["-", "-"]  # nobody has told whose they are
    remember(cache, a, ONE)
    assert stored(capsys) == ["3", "-"]
    # Another type of K/V cache has a fingerprint of its own; both are the model's.
    fill(cache, TWO, 2)
    remember(cache, a, TWO)
    remember(cache, a, ONE)
    assert fingerprints_of(cache, a) == [ONE, TWO] and stored(capsys) == ["5", "-"]
    assert stored(capsys, "--no-cache-ssd") == ["-", "-"]
    assert stored(capsys, "--cache-ssd", str(clone / "elsewhere")) == ["-", "-"]
    assert (cache / FILE).stat().st_mode & 0o777 == 0o600


def test_file_that_is_called_after_its_hash_has_the_name_of_its_link(clone: Path) -> None:
    cache, blob = clone / "kv-cache", clone / ("0" * 64)
    blob.write_bytes(gguf_bytes())
    (clone / "models" / "c.gguf").symlink_to(blob)
    remember(cache, clone / "models" / "c.gguf", ONE)
    assert owners(cache) == {ONE: "c"} and fingerprints_of(cache, blob) == [ONE]
    (cache / FILE).write_text((cache / FILE).read_text().replace('"name"', '"as an earlier version wrote it"'))
    assert owners(cache) == {ONE: "0" * 64}


def test_removed_state_is_not_counted(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = clone / "kv-cache"
    remember(cache, clone / "models" / "a.gguf", ONE)
    assert stored(capsys) == ["0", "-"]


def test_state_in_use_does_not_stop_the_list(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = clone / "kv-cache"
    fill(cache, ONE, 1)
    remember(cache, clone / "models" / "a.gguf", ONE)
    with _kernels.Store(str(cache), bytes.fromhex(ONE), page_size=16, written_by="test"):
        assert stored(capsys) == ["in use", "-"]


def test_replaced_file_does_not_keep_the_old_ones_state(clone: Path) -> None:
    cache, a = clone / "kv-cache", clone / "models" / "a.gguf"
    remember(cache, a, ONE)
    os.utime(a, ns=(1, 1))
    assert fingerprints_of(cache, a) == []
    remember(cache, a, TWO)
    assert fingerprints_of(cache, a) == [TWO]
    remember(cache, clone / "models" / "b.gguf", ONE)
    assert fingerprints_of(cache, a) == [TWO]


@pytest.mark.parametrize(
    "text",
    ["", "{", "{}", "[1]", '[{"path": "x"}]', '[{"path": 1, "size": 1, "mtime_ns": 1, "fingerprints": ["../x"]}]'],
)
def test_broken_map_does_not_stop_the_list(clone: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    (clone / "kv-cache" / FILE).write_text(text)
    assert stored(capsys) == ["-", "-"]
    remember(clone / "kv-cache", clone / "models" / "a.gguf", ONE)
    assert fingerprints_of(clone / "kv-cache", clone / "models" / "a.gguf") == [ONE]


def test_disk_that_refuses_does_not_stop_the_server(clone: Path) -> None:
    remember(clone / "kv-cache" / "gone", clone / "models" / "a.gguf", ONE)
    remember(clone / "kv-cache", clone / "models" / "none.gguf", ONE)
    assert not (clone / "kv-cache" / FILE).exists()
