"""What the TAB key gives, asked as the shells do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fakes.models import gguf_bytes
from stores import MODEL, conversation, fill, make_clone, prompt, run

from pyrun.cache.owners import remember


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = make_clone(tmp_path)
    (root / "models").mkdir()
    for name in ("Qwen3-4B-Q4_K_M", "gpt-oss-20b"):
        (root / "models" / f"{name}.gguf").write_bytes(gguf_bytes())
    fill(root / "kv-cache", prompt(1))
    remember(root / "kv-cache", root / "models" / "gpt-oss-20b.gguf", MODEL.hex())
    monkeypatch.setenv("LLAMA_RUN_HOME", str(root))
    return root


def completed(line: str) -> list[str]:
    """As click's script for bash asks: the words so far, and the number of the one that is being typed."""
    words = line.split(" ")
    environment = {**os.environ, "_LLAMA_RUN_COMPLETE": "bash_complete", "COMP_WORDS": line}
    environment["COMP_CWORD"] = str(len(words) - 1)
    found = subprocess.run([sys.executable, "-m", "pyrun"], env=environment, capture_output=True, text=True)
    assert found.stderr == ""
    return [line.partition(",")[2] for line in found.stdout.splitlines() if line]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("llama-run ca", ["cache"]),
        ("llama-run --ser", ["--server"]),
        ("llama-run --server q", ["Qwen3-4B-Q4_K_M"]),
        ("llama-run start g", ["gpt-oss-20b"]),
        ("llama-run --backend v", ["vulkan"]),
        ("llama-run chat q", ["Qwen3-4B-Q4_K_M"]),
        ("llama-run cache rm ", [conversation(prompt(1))]),
        ("llama-run cache keep ", [conversation(prompt(1))]),
        ("llama-run cache push ", [conversation(prompt(1))]),
        ("llama-run cache ls --model g", ["gpt-oss-20b"]),
        ("llama-run cache ls --js", ["--json"]),
        ("llama-run nonsense x", []),
    ],
)
def test_word_is_completed(clone: Path, line: str, expected: list[str]) -> None:
    assert completed(line) == expected


def test_broken_settings_do_not_disturb_the_key(clone: Path) -> None:
    (clone / "llama-run.toml").write_text("[nonsense")
    assert completed("llama-run sto") == ["stop"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_take_what_is_printed(clone: Path, capsys: pytest.CaptureFixture[str], shell: str) -> None:
    code, out, _ = run(capsys, "completion", shell)
    assert code == 0 and f"_LLAMA_RUN_COMPLETE={shell}_complete" in out
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=out, text=True, check=True)


def test_unknown_shell_is_refused(
    clone: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHELL", "/bin/csh")
    assert "name a shell: bash, zsh, fish" in run(capsys, "completion")[2]
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert run(capsys, "completion")[0] == 0
