"""What `llama-run cache verify` finds, and what `gc` cleans."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stores import (
    MODEL,
    OTHER,
    conversation,
    fill,
    flip_last_byte,
    prompt,
    rows_of,
    run,
    run_json,
    segment_files,
    store_at,
)

from pyrun import _kernels
from pyrun.cache.look import list_cache, verify_cache


def test_flipped_byte_is_found(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(cache, prompt(1), prompt(2))
    code, out, err = run(capsys, "cache", "verify", "--cache-ssd", cache)
    assert (code, out) == (0, "") and "sound, 6 files read" in err
    damaged = segment_files(cache)[0]
    flip_last_byte(damaged)
    code, out, err = run(capsys, "cache", "verify", "--cache-ssd", cache)
    assert code == 1
    assert out == f"{damaged}: bad_checksum\n"
    assert f"error: 1 of 6 files fail their checksum in {cache / MODEL.hex()}/\n" in err
    assert "hint: `llama-run cache gc --corrupt` sets them aside" in err
    code, out, _ = run(capsys, "cache", "verify", "--cache-ssd", cache, "--json")
    assert code == 1
    assert [d["path"] for d in json.loads(out)["models"][0]["damaged"]] == [str(damaged)]


@settings(max_examples=60)
@given(st.data())
def test_any_flipped_byte_is_found(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "cache"
        fill(cache, prompt(1))
        files = sorted(
            path for path in cache.rglob("*") if path.is_file() and path.name not in ("lock", "CACHEDIR.TAG")
        )
        path = data.draw(st.sampled_from(files))
        content = bytearray(path.read_bytes())
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(content)
        found = verify_cache(cache).models[0]
        assert str(path) in [damage.path for damage in found.damaged] and not found.is_sound


def test_truncated_files_are_found(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(cache, prompt(1), prompt(2), prompt(3))
    first, second, _ = segment_files(cache)
    os.truncate(first, first.stat().st_size - 1)
    second.write_bytes(b"")
    code, out, err = run(capsys, "cache", "verify", "--cache-ssd", cache)
    assert code == 1
    assert f"{first}: truncated" in out and f"{second}: truncated" in out and "incomplete" in out
    # The index files of the two conversations that lost all their turns are not looked at any more.
    assert "4 of 7 files are damaged" in err and "2 have the wrong length" in err
    assert run_json(capsys, "cache", "stats", "--cache-ssd", cache)["models"][0]["damaged"] == {
        "truncated": 2,
        "incomplete": 2,
    }
    assert "warning: damage in 4 files" in run(capsys, "cache", "ls", "--cache-ssd", cache)[2]


def test_hostile_names_do_not_reach_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = tmp_path / os.fsdecode(b"ca\xffche")
    with store_at(cache) as store:
        store.save(prompt(1), rows_of(prompt(1)), backend="\x1b[31mred")
    (cache / MODEL.hex() / "pages" / os.fsdecode(b"\xff\x1b[31m")).write_bytes(b"junk")
    for words in (["ls"], ["stats"], ["verify"], ["verify", "--json"], ["gc", "--corrupt"], ["verify"]):
        _, out, err = run(capsys, "cache", *words, "--cache-ssd", cache)
        assert "\x1b" not in out + err and "Traceback" not in err
    assert not (cache / MODEL.hex() / "pages" / os.fsdecode(b"\xff\x1b[31m")).exists()


def test_gc_corrupt_keeps_sound_state(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(cache, prompt(1), prompt(2))
    damaged = segment_files(cache)[0]
    flip_last_byte(damaged)
    code, out, err = run(capsys, "cache", "gc", "--corrupt", "--cache-ssd", cache)
    assert code == 0, err
    assert "2 damaged files set aside" in out  # the pages, and the checkpoint that needs them
    assert f"set aside: {damaged} (bad_checksum)" in err and "`llama-run cache gc` removes" in err
    assert not damaged.exists()
    quarantine = cache / MODEL.hex() / "quarantine"
    assert len(list(quarantine.iterdir())) == 2
    assert run(capsys, "cache", "verify", "--cache-ssd", cache)[0] == 0
    with store_at(cache) as store:
        assert store.lookup(prompt(1)).n_tokens == 0
        assert b"".join(run[2] for run in store.load(prompt(2)).runs) == rows_of(prompt(2))(0, 40)

    before = _kernels.measure_tree(str(cache))
    aside = run_json(capsys, "cache", "stats", "--cache-ssd", cache)["models"][0]
    assert aside["quarantine_files"] == 2
    freed = run_json(capsys, "cache", "gc", "--cache-ssd", cache)
    assert freed["bytes_freed"] == before - _kernels.measure_tree(str(cache)) == aside["quarantine_bytes"] > 0
    assert not quarantine.exists()
    assert run_json(capsys, "cache", "gc", "--cache-ssd", cache)["bytes_freed"] == 0


def test_gc_removes_what_nothing_can_use(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokens = prompt(1, 48)
    with store_at(cache) as store:
        store.save(tokens[:32], rows_of(tokens), checkpoint=False)
        store.save(tokens, rows_of(tokens))
    segment_files(cache)[0].unlink()  # the beginning of the conversation
    (cache / MODEL.hex() / "pages" / "tmp-7").write_bytes(bytes(5000))
    stats = run_json(capsys, "cache", "stats", "--cache-ssd", cache)["models"][0]
    assert (stats["unfinished_files"], stats["unusable_files"]) == (1, 1)
    code, out, err = run(capsys, "cache", "gc", "--cache-ssd", cache)
    assert code == 0 and "freed" in out and "incomplete" in err
    assert not segment_files(cache) and not list(cache.rglob("tmp-*")) and not list(cache.rglob("*.bin"))


def test_cleaning_applies_no_limits_that_nobody_gave(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(cache, *(prompt(seed, 20) for seed in range(1, 301)))  # more than a server keeps by default
    fill(cache, prompt(1), model=OTHER)
    run_json(capsys, "cache", "gc", "--cache-ssd", cache)
    run_json(capsys, "cache", "rm", conversation(prompt(1, 20)), "--yes", "--cache-ssd", cache)
    models = list_cache(cache).models
    assert [len(model.conversations) for model in models] == [299, 1]
