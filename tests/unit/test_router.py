"""Presets for upstream's router, and which models fit at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from fakes.models import gguf_bytes, small
from stores import make_clone, run

from pyrun.cli import router
from pyrun.models.fit import Memory, Need
from pyrun.models.profile import Profile
from pyrun.server.router import Preset, at_most, presets_text


def test_preset_has_what_the_command_line_would_have() -> None:
    words = ("--ctx-size", "4096", "--no-context-shift", "--seed", "-1", "--temp", "1", "--temp", "0.2", "--mlock")
    assert presets_text([Preset("a b", Path("/m/a b.gguf"), words)]) == (
        "version = 1\n\n[*]\nstop-timeout = 120\n\n[a b]\nmodel = /m/a b.gguf\nctx-size = 4096\n"
        "no-context-shift = true\nseed = -1\ntemp = 0.2\nmlock = true\n"
    )


@pytest.mark.parametrize(
    ("needs", "memory", "expected"),
    [([5, 3, 2], 10, 3), ([5, 3, 2], 9, 2), ([5, 3, 2], 4, 1), ([2, 20, 2], 20, 2), ([9, 9], 4, 1), ([], 4, 1)],
)
def test_at_most_so_many_are_loaded_as_the_smallest_fit_together(needs: list[int], memory: int, expected: int) -> None:
    assert at_most(needs, memory) == expected


@pytest.mark.parametrize(
    ("memory", "shared", "share"),
    [
        (Memory(0, 20, 20, "", ""), 20, 7),  # there is RAM alone
        (Memory(12, 16, 20, "", ""), 12, 7),  # graphics share it
        (Memory(24, 16, 40, "", ""), 24, 5),  # a card has its own, and the cache is in RAM
    ],
)
def test_models_share_the_memory_that_they_are_loaded_into(memory: Memory, shared: int, share: int) -> None:
    profile = Profile(small(), "any", (), Need(3, 1, 1), memory, cache_ram=2)
    assert (profile.shared_memory, profile.share) == (shared, share)


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
    assert (
        f"--models-preset {root}/logs/models-9090.ini --models-max 2 --models-memory " in two and "--top-p 0.5" in two
    )
    assert "model-need = " in one and "model-need = " in two and "as many are loaded at once as fit" in err
    said = run(capsys, "--server", "--all", "--dry-run", "--", "--models-memory", "4G")[1]
    assert said.count("--models-memory") == 1 and "--models-memory 4G" in said
    (root / "llama-run.toml").write_text("[models.two]\narguments = ['--model-need', '900G']\n")
    told = run(capsys, "--server", "--all", "--dry-run")[1].split("[two]")[1]
    assert "model-need = 900G" in told and "--models-max 2 --models-memory" in told
    (root / "llama-run.toml").unlink()
    counted = run(capsys, "--server", "--all", "--dry-run", "--noauto")
    assert (
        "--models-max 4 --host" in counted[1] and "model-need" not in counted[1] and "--models-max says" in counted[2]
    )
    for words in ("--server one --all", "--server --all --print-profile"):
        assert run(capsys, *words.split())[0] == 2
    assert "--all goes with --server" in run(capsys, "--all")[2]


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone with the models one, two and three."""
    root = make_clone(tmp_path)
    monkeypatch.setenv("LLAMA_RUN_HOME", str(root))
    monkeypatch.delenv("LLAMA_ARG_CACHE_SSD", raising=False)
    (root / "models").mkdir()
    for name in ("one", "two", "three"):
        (root / "models" / f"{name}.gguf").write_bytes(gguf_bytes({"llama.context_length": 8192}))
    return root


def presets(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, str]:
    """What each model is given, at `*` what all are; at `router` the command line, and at `said` what was said."""
    code, out, err = run(capsys, "--dry-run", *words)
    assert code == 0, err
    text, command = out.rstrip().rsplit("\n", 1)
    found = {part.partition("]")[0]: part.partition("]")[2] for part in text.split("[") if "]\n" in part}
    return {**found, "router": command, "said": err}


def test_state_of_a_model_is_kept_where_its_own_settings_say(
    models: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (models / "llama-run.toml").write_text(
        "[models.one]\nno-cache-ssd = true\n[models.two]\ncache-ssd = 'elsewhere'\nport = 9999\nbackend = 'vulkan'\n"
    )
    told = presets(capsys, "--server", "--all")
    assert "cache-ssd = \n" in told["one"] and "--cache-ssd " not in told["router"]
    assert f"cache-ssd = {models}/kv-cache\n" in told["*"], "for what upstream itself has downloaded"
    assert f"cache-ssd = {models}/elsewhere" in told["two"]
    assert f"cache-ssd = {models}/kv-cache" in told["three"]
    assert "two: not used, because other models are served as well: its own port, backend\n" in told["said"]
    typed = presets(capsys, "--server", "--all", "--cache-ssd", "/typed")
    assert all("cache-ssd = /typed\n" in typed[name] for name in ("one", "two", "three"))
    monkeypatch.setenv("LLAMA_ARG_CACHE_SSD", "/named")
    assert "cache-ssd = /named\n" in presets(capsys, "--server", "--all")["three"]
    off = presets(capsys, "--server", "--all", "--no-cache-ssd")
    assert all("cache-ssd = \n" in off[name] for name in ("one", "two", "three"))


def test_settings_for_all_models_reach_the_router(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "--server --all --cache-ssd-shared /shared --context-overflow evict --with-tools --port 9555"
    told = presets(capsys, *words.split())
    for line in ("cache-ssd-shared = /shared", "context-overflow = evict", f"context-spool = {models}/memory/spool"):
        assert f"{line}\n" in told["*"]
    assert f"--mcp-servers-config {models}/memory/mcp-servers-9555.json" in told["router"]


def test_words_of_a_model_count_more_than_those_for_all(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (models / "llama-run.toml").write_text(
        "[server]\narguments = ['--temp', '0.1', '--top-k', '5', '-c', '4096']\n"
        "[models.one]\narguments = ['--temp', '0.9', '--ctx-size', '512']\n"
    )
    told = presets(capsys, "--server", "--all", "--", "--min-p", "0.2")
    assert "temp = 0.9" in told["one"] and "temp" not in told["two"]
    assert "ctx-size = 512" in told["one"] and "ctx-size" not in told["two"]
    assert "temp = 0.1\ntop-k = 5\nc = 4096\n" in told["*"]
    assert "--temp" not in told["router"] and told["router"].endswith(" --min-p 0.2")
    assert "--temp 0.3" in presets(capsys, "--server", "--all", "--", "--temp", "0.3")["router"]


def test_words_about_the_address_are_the_router_s(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (models / "llama-run.toml").write_text(
        "[server]\n"
        "arguments = ['--api-key', 'S', '--api-prefix', '/x', '--samplers', 'a;b', '--metadata-users', 'on'\n"
        ", '-to', '7']\n"
        "[models.one]\narguments = ['--api-key', 'T', '--api_prefix', '/y', '--no-jinja', '--top-k', '3']\n"
    )
    told = presets(capsys, "--server", "--all")
    assert "--api-key S --api-prefix /x" in told["router"] and "-to 7" in told["router"]
    assert "--samplers 'a;b'" in told["router"]  # the file could not hold it
    assert "api" not in told["one"] + told["two"] + told["*"]
    assert "its own --api-key, --api_prefix\n" in told["said"]
    assert "jinja = true" in told["*"] and "no-jinja = true\n" in told["one"] and "--jinja" not in told["router"]
    assert "metadata-users = on\n" in told["*"] and "top-k = 3\n" in told["one"]


def test_state_is_where_words_say_and_its_folder_is_known(
    models: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str | None] = []

    def note(found: Sequence[Preset], words: Sequence[str]) -> str:
        seen.extend(one.cache for one in found)
        return presets_text(found, words)

    monkeypatch.setattr(router, "presets_text", note)
    for words in ("--server one,two -- --cache-ssd /typed", "--server one,two --no-cache-ssd"):
        run(capsys, "--dry-run", *words.split())
    assert seen == ["/typed", "/typed", None, None]


def test_some_models_are_served_with_commas_between(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = presets(capsys, "--server", "one,thr")
    assert {"one", "three"} < told.keys() and "two" not in told
    assert {"one", "two"} < presets(capsys, "--server", "one, two,one,").keys()
    (models / "models" / "four,five.gguf").write_bytes((models / "models" / "one.gguf").read_bytes())
    assert "four,five" in run(capsys, "--dry-run", "--server", "four,five")[1]
    (models / "models" / "cut.gguf").write_bytes(b"GGUF")
    assert run(capsys, "--dry-run", "--server", "one,cut")[2].count("error: cut: ") == 1
    assert "no model is called" in run(capsys, "--server", ",".join("x" * 39 for _ in range(8)))[2]
    (models / "llama-run.toml").write_text("[server]\nmodel = 'one,two'\n")
    assert {"one", "two"} < presets(capsys, "--server").keys()
    for words in ("--server one,two --print-profile", "--server one --all", "--server --all --workers 127.0.0.1"):
        assert run(capsys, *words.split())[0] == 2
