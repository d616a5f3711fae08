"""Reading GGUF heads: as the gguf package does, quickly, and with a clear word about every kind of broken file."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import pytest
from fakes.models import gguf_bytes
from gguf import GGUFReader

from pyrun.models.facts import facts_of_name, model_facts
from pyrun.models.gguf import BrokenModelError, Skipped, read_gguf
from toys import MODELS, ensure

TOYS = Path(__file__).resolve().parents[2] / ".cache" / "toys"


@pytest.mark.parametrize("name", sorted(MODELS))
def test_reader_agrees_with_the_gguf_package(name: str) -> None:
    path = ensure(name, TOYS)
    ours, theirs = read_gguf(path), GGUFReader(path)
    fields = {key: field for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert set(ours.metadata) == set(fields)
    for key, value in ours.metadata.items():
        if isinstance(value, Skipped):
            assert value.length == len(fields[key].data)
        else:
            assert value == fields[key].contents()
    assert [(t.name, t.elements, t.bytes) for t in ours.tensors] == [
        (t.name, t.n_elements, t.n_bytes) for t in theirs.tensors
    ]


def test_twenty_large_vocabularies_are_read_quickly(tmp_path: Path) -> None:
    data = gguf_bytes(vocabulary=200_000)
    paths = [tmp_path / f"{n}.gguf" for n in range(20)]
    for path in paths:
        path.write_bytes(data)
    started = time.process_time()
    found = [read_gguf(path) for path in paths]
    assert time.process_time() - started < 1.0
    assert all(g.metadata["tokenizer.ggml.merges"] == Skipped(200_000) for g in found)


def test_vocabulary_that_looks_like_a_key_is_not_taken_for_one(tmp_path: Path) -> None:
    """The quick way over a vocabulary meets a token that reads like the next key: the exact way is taken."""
    tokens = [f"token {n}" for n in range(6000)]
    tokens[5000:5003] = ["tokenizer.", "tokenizer.ggml.eos_token_id", "\x04\0\0\0\x07\0\0\0"]
    path = tmp_path / "odd.gguf"
    path.write_bytes(gguf_bytes({"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.eos_token_id": 5}))
    found = read_gguf(path)
    assert found.metadata["tokenizer.ggml.tokens"] == Skipped(6000)
    assert found.metadata["tokenizer.ggml.eos_token_id"] == 5 and len(found.tensors) == 2


def test_cut_off_file_is_not_read_as_whole(tmp_path: Path) -> None:
    """At every length."""
    whole = gguf_bytes(vocabulary=20)
    path = tmp_path / "cut.gguf"
    for length in range(4, len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(BrokenModelError, match="is cut off"):
            read_gguf(path)
    path.write_bytes(whole)
    assert len(read_gguf(path).tensors) == 2


def test_cut_off_file_is_told_with_numbers(tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    whole = gguf_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(BrokenModelError, match=f"cut.gguf: is cut off: {len(whole) - 100:,} of {len(whole):,} bytes"):
        read_gguf(path)


def test_damaged_head_of_a_large_file_is_not_called_too_short(tmp_path: Path) -> None:
    """A length that leads out of the file may be damage as well as a missing end: the size alone says nothing."""
    path = tmp_path / "large.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 60) + bytes(100_000))
    with pytest.raises(BrokenModelError, match="cut off or damaged: its head speaks of more than the 100,032 bytes"):
        read_gguf(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"x" * 1000, "is not a GGUF file"),
        (b"<!DOCTYPE html><html>" + b" " * 100, "is a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "is a pointer of Git LFS"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "has GGUF version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "is a big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "is damaged"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 60) + b"x" * 100, "is cut off"),
        (b"GGUF" + struct.pack("<IQQQ4sI", 3, 0, 1, 4, b"\xff\xfe\xfd\xfc", 4) + b"x" * 100, "is damaged"),
        (b"GGUF" + struct.pack("<IQQQ4sI", 3, 0, 1, 4, b"abcd", 77) + b"x" * 100, "is damaged"),
    ],
)
def test_broken_file_is_an_error(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(data)
    with pytest.raises(BrokenModelError, match=message):
        read_gguf(path)


def test_random_damage_is_an_error_or_nothing(tmp_path: Path) -> None:
    whole = gguf_bytes(vocabulary=5)
    path = tmp_path / "damaged.gguf"
    for position in range(4, len(whole) - 512):
        for value in (0x00, 0x7F, 0xFF):
            path.write_bytes(whole[:position] + bytes([value]) + whole[position + 1 :])
            try:
                model_facts("damaged", [read_gguf(path)])
            except BrokenModelError:
                continue


@pytest.mark.parametrize(
    ("name", "kind", "per_token", "state"),
    [
        ("dense", "dense", 2048, 0),
        ("moe", "mixture of experts", 1536, 0),
        ("mla", "mixture of experts", 3456, 0),
        ("swa-gemma3", "dense, window of 64", 1024, 0),
        ("swa-gptoss", "mixture of experts, window of 64", 1024, 0),
        ("hybrid-moe", "mixture of experts, hybrid", 1024, 548864),
        ("hybrid-mamba", "dense, hybrid", 1024, 274432),
        ("recurrent", "dense, recurrent", 0, 548864),
    ],
)
def test_kind_of_memory_is_read(name: str, kind: str, per_token: int, state: int) -> None:
    facts = model_facts(name, [read_gguf(ensure(name, TOYS))])
    assert (facts.kind, facts.kv_per_token("f16", "f16"), facts.state) == (kind, per_token, state)
    assert facts.source == "metadata" and facts.context == 32768 and facts.quantisation == "F32"


def test_name_is_used_where_there_is_nothing_else() -> None:
    facts = facts_of_name("Qwen3-30B-A3B-UD-Q4_K_XL", 17 << 30)
    assert facts.is_moe and facts.quantisation == "UD-Q4_K_XL" and facts.source == "file name"
    assert not facts_of_name("SmolLM2-135M-Instruct.Q4_1", 98 << 20).is_moe
    assert facts_of_name("Mixtral-8x7B-IQ4_XS", 1).is_moe
