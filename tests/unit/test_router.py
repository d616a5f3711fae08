"""Presets for upstream's router, and how many models fit at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.models import gguf_bytes
from stores import make_clone, run

from pyrun.server.router import Preset, at_once, presets_text


def test_preset_has_what_the_command_line_would_have() -> None:
    words = ("--ctx-size", "4096", "--no-context-shift", "--seed", "-1", "--temp", "1", "--temp", "0.2", "--mlock")
    assert presets_text([Preset("a b", Path("/m/a b.gguf"), words)]) == (
        "version = 1\n\n[*]\nstop-timeout = 120\n\n[a b]\nmodel = /m/a b.gguf\nctx-size = 4096\n"
        "no-context-shift = true\nseed = -1\ntemp = 0.2\nmlock = true\n"
    )


@pytest.mark.parametrize(
    ("needs", "memory", "expected"),
    [([5, 3, 2], 10, 3), ([5, 3, 2], 9, 2), ([5, 3, 2], 7, 1), ([5, 3, 2], 4, 1), ([], 4, 1)],
)
def test_so_many_are_loaded_that_the_largest_fit_together(needs: list[int], memory: int, expected: int) -> None:
    assert at_once(needs, memory) == expected


def test_every_model_that_can_be_served_has_its_profile_and_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_clone(tmp_path)
    monkeypatch.setenv("LLAMA_RUN_HOME", str(root))
    (root / "models").mkdir()
    assert "no model in" in run(capsys, "--server", "--all", "--dry-run")[2]
    whole = gguf_bytes({"llama.context_length": 8192})
    for name, data in {"one": whole, "two": whole, "cut": whole[:-1], "odd#name": whole}.items():
        (root / "models" / f"{name}.gguf").write_bytes(data)
    (root / "llama-run.toml").write_text("[models.two]\nctx = 512\narguments = ['--temp', '0.7']\n")
    code, out, err = run(capsys, "--server", "--all", "--dry-run", "--", "--top-p", "0.5")
    assert code == 0 and "left out: cut: " in err and "left out: odd#name: " in err
    one, two = out.split("[one]")[1].split("[two]")
    assert "ctx-size = 8192" in one and "temp" not in one
    assert "ctx-size = 512" in two and "temp = 0.7" in two
    assert f"--models-preset {root}/logs/models-9090.ini --models-max 2 --host" in two and "--top-p 0.5" in two
    for words in ("--server one --all", "--server --all --print-profile"):
        assert run(capsys, *words.split())[0] == 2
    assert "--all goes with --server" in run(capsys, "--all")[2]
