"""Installed as a package, without the native module, and under another name than `llama-run`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT
from stores import MODEL, OTHER, WITHOUT_NATIVE, fill, make_clone, prompt, run, run_json

from pyrun.cache.owners import remember
from pyrun.cli import install_link
from pyrun.console import as_typed
from pyrun.home import Home, installed_home
from pyrun.models.suggested import KNOWN, suggestions

GIB = 1 << 30


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = make_clone(tmp_path)
    monkeypatch.setenv("LLAMA_RUN_HOME", str(root))
    return root


def test_package_keeps_what_it_makes_where_xdg_says(tmp_path: Path) -> None:
    variables = {"XDG_DATA_HOME": "/data", "XDG_STATE_HOME": "/state", "XDG_CACHE_HOME": "relative/counts/not"}
    home = installed_home(variables)
    assert (home.models, home.memory) == (Path("/data/llama-run/models"), Path("/data/llama-run/memory"))
    assert (home.kv_cache, home.logs) == (Path("/state/llama-run/kv-cache"), Path("/state/llama-run/logs"))
    assert home.settings == Path.home() / ".config" / "llama-run" / "llama-run.toml"
    assert home.server_binary("cpu") == Path.home() / ".cache/llama-run/llama.cpp/build/cpu/bin/llama-server"


def test_package_makes_nothing_inside_itself() -> None:
    home = installed_home({})
    made = {name for name, kind in vars(Home).items() if isinstance(kind, property)}
    inside = {name for name in made if getattr(home, name).is_relative_to(ROOT)}
    assert inside == {"pin", "patches", "kernels", "web_page"}, "what is only read"


def test_everything_has_a_place(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "where", "--json")
    assert code == 0 and json.loads(out)["models"] == str(clone / "models"), err


def test_server_starts_without_the_native_module(clone: Path) -> None:
    (clone / "kv-cache").mkdir()
    (clone / "kv-cache" / "something").touch()
    environment = {**os.environ, "LLAMA_RUN_HOME": str(clone)}
    served = subprocess.run([*WITHOUT_NATIVE, "--server", "--dry-run"], env=environment, capture_output=True, text=True)
    assert served.returncode == 0 and "--cache-ssd" in served.stdout, served.stderr
    lacks = f"the native module is not built for this Python ({sys.version_info.major}.{sys.version_info.minor})\n"
    for words, what in {
        "ls": f"no server of yours is running with {clone / 'kv-cache'}, and its files cannot be read without one",
        "stats": "this reads or changes stored state, or the memory, itself",
    }.items():
        asked = subprocess.run([*WITHOUT_NATIVE, "cache", words], env=environment, capture_output=True, text=True)
        assert asked.returncode == 1 and f"error: {what}: {lacks}hint: `llama-run cache ls` works" in asked.stderr


def test_stored_state_is_listed_and_chosen_by_the_models_name(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = clone / "kv-cache"
    fill(cache, prompt(1))
    fill(cache, prompt(2), model=OTHER)
    (clone / "Qwen3-4B.gguf").touch()
    remember(cache, clone / "Qwen3-4B.gguf", MODEL.hex())
    out = run(capsys, "cache", "ls")[1]
    assert f"model Qwen3-4B ({MODEL.hex()}): " in out and f"model {OTHER.hex()}: " in out
    (only,) = run_json(capsys, "cache", "ls", "--model", "qwen3")["models"]
    assert (only["fingerprint"], only["model"]) == (MODEL.hex(), "Qwen3-4B")
    (only,) = run_json(capsys, "cache", "ls", "--model", OTHER.hex()[:4])["models"]
    assert (only["fingerprint"], only["model"]) == (OTHER.hex(), None)
    code, _, err = run(capsys, "cache", "ls", "--model", "llama")
    assert code == 1 and f"{MODEL.hex()} Qwen3-4B" in err


def test_hints_name_the_command_as_it_is_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a cache of llama-run: `llama-run cache ls`, or llama-run --server x"
    assert as_typed(text) == text
    monkeypatch.setenv("LLAMA_RUN_COMMAND", "./llama-run")
    assert as_typed(text) == "a cache of llama-run: `./llama-run cache ls`, or ./llama-run --server x"


def test_link_is_made_found_again_and_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bin"
    for _ in range(2):
        code, _, err = run(capsys, "install-link", "--into", folder)
        assert code == 0 and (folder / "llama-run").resolve() == ROOT / "llama-run"
        assert f"{folder} is not on your PATH" in err
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    assert "is not on your PATH" not in run(capsys, "install-link", "--into", folder)[2]
    assert run(capsys, "install-link", "--into", folder, "--remove")[0] == 0 and not list(folder.iterdir())
    (folder / "llama-run").write_text("somebody's")
    for words in ((), ("--remove",)):
        code, _, err = run(capsys, "install-link", "--into", folder, *words)
        assert code == 1 and "is there already, and not a link" in err
    assert (folder / "llama-run").read_text() == "somebody's"
    monkeypatch.setattr(install_link, "is_clone", lambda: False)
    assert "installed as a package" in run(capsys, "install-link", "--into", folder)[2]


def test_suggested_models_fit() -> None:
    assert [one.size for one in KNOWN] == sorted(one.size for one in KNOWN)
    assert suggestions(GIB // 2) == []
    for memory in (4 * GIB, 16 * GIB, 32 * GIB, 128 * GIB):
        found = suggestions(memory)
        assert len(found) == 3 and all(one.size < 0.7 * memory for one in found)


def test_first_start_suggests_models_and_samples_the_toy_as_advised(
    clone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, err = run(capsys, "--server", "--dry-run")
    assert err.count("llama-run --download ") == 3 and "a toy to try things with" in err
    assert out.endswith(" --temp 0.2 --top-p 0.9\n")
    assert run(capsys, "--server", "--dry-run", "--", "--temp", "1")[1].endswith(" --top-p 0.9 --temp 1\n")
    assert "--temp" not in run(capsys, "--server", "--dry-run", "--noauto")[1]
