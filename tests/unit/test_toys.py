"""Tests of the toy models: what a file must hold before a server is started on it."""

import hashlib
import itertools
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

import toys
from toys.tokenizer import SPECIAL, byte_letters
from toys.weights import Weights

NAMES = sorted(toys.MODELS)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("toys")


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def encode(text: str) -> list[int]:
    """Byte-level BPE without a pre-tokenizer: slow, and obviously right."""
    words = toys.vocabulary()
    rank = {pair: position for position, pair in enumerate(words.merges)}
    ids = {token: position for position, token in enumerate(words.tokens)}
    parts = [byte_letters()[byte] for byte in text.encode()]
    while True:
        pairs = [(rank[pair], at) for at, pair in enumerate(itertools.pairwise(parts)) if pair in rank]
        if not pairs:
            return [ids[part] for part in parts]
        _, at = min(pairs)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


def decode(ids: list[int]) -> str:
    words = toys.vocabulary()
    return b"".join(words.bytes_of(token) for token in ids).decode()


def test_another_process_writes_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    # Another hash seed too: an order taken from a set would pass in one process and fail here.
    package = Path(toys.__file__).parent.parent
    environment = os.environ | {"PYTHONPATH": str(package), "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-m", "toys", "--out", str(tmp_path)]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    for name in NAMES:
        here = toys.ensure(name, folder)
        assert digest(here) == digest(tmp_path / here.name), name


def test_random_values_are_those_of_every_machine() -> None:
    # Known answer: it must not change with the machine, the numpy version or the C library.
    weights = Weights("known-answer", toys.vocabulary())
    weights.matrix("some.weight", 3, 64)
    weights.branch("other.weight", 3, 64, gain=2.0)
    blob = b"".join(values.tobytes() for values in weights.tensors.values())
    assert hashlib.sha256(blob).hexdigest()[:16] == "2b12095241e54b5a"


def test_a_file_is_written_once_and_leaves_nothing_behind(tmp_path: Path) -> None:
    first = toys.ensure("dense", tmp_path / "new")
    before = first.stat().st_mtime_ns
    assert toys.ensure("dense", tmp_path / "new") == first
    assert first.stat().st_mtime_ns == before
    assert first.name == f"dense-{toys.generator_digest()}.gguf"
    assert list((tmp_path / "new").iterdir()) == [first]


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def disk_full(toy: toys.Toy, path: Path, weights: toys.Weights) -> None:
        path.write_bytes(b"GGUF")
        raise OSError("no space left")

    monkeypatch.setattr("toys.files.write", disk_full)
    with pytest.raises(OSError, match="no space"):
        toys.ensure("dense", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        toys.ensure("no-such-model", tmp_path)


def test_every_kind_of_memory_has_a_model() -> None:
    assert {toy.memory for toy in toys.MODELS.values()} == set(toys.Memory)


@pytest.mark.parametrize("name", NAMES)
def test_files_are_small_and_complete(name: str, folder: Path) -> None:
    path = toys.ensure(name, folder)
    assert path.stat().st_size < 10e6
    reader = GGUFReader(path)
    arch = toys.MODELS[name].arch

    def value(key: str) -> object:
        return reader.fields[key].contents()

    assert value("general.architecture") == arch
    assert value("general.name") == f"toy-{name}"
    assert value(f"{arch}.context_length") == 32768
    assert value("tokenizer.ggml.model") == "gpt2"
    assert value("tokenizer.chat_template") == toys.CHAT_TEMPLATE
    assert value("tokenizer.ggml.tokens") == list(toys.vocabulary().tokens)
    blocks = {tensor.name.split(".")[1] for tensor in reader.tensors if tensor.name.startswith("blk.")}
    assert blocks == {str(block) for block in range(int(str(value(f"{arch}.block_count"))))}
    assert all(np.isfinite(tensor.data).all() for tensor in reader.tensors)


@pytest.mark.parametrize("name", NAMES)
def test_only_printable_tokens_can_win_and_nothing_writes_the_constant(name: str, folder: Path) -> None:
    tensors = {tensor.name: tensor.data for tensor in GGUFReader(toys.ensure(name, folder)).tensors}
    constant = tensors["token_embd.weight"][:, 0]
    assert constant.min() == constant.max() > 0
    for token, row in enumerate(tensors["output.weight"]):
        if toys.vocabulary().is_printable(token):
            assert row[0] == 0 and row.any()
        else:
            assert row[0] < -10 and not row[1:].any()
    branches = ("attn_output", "attn_output_b", "ssm_out", "ffn_down", "ffn_down_exps", "ffn_down_shexp")
    written = [name for name in tensors if name.endswith(tuple(f".{branch}.weight" for branch in branches))]
    assert written
    assert not any(tensors[name][..., 0, :].any() for name in written)


def test_merges_make_tokens_of_the_vocabulary_once() -> None:
    words = toys.vocabulary()
    assert len(words.tokens) == len(set(words.tokens)) == 768
    assert words.tokens[:256] == byte_letters()
    assert words.tokens[-len(SPECIAL) :] == SPECIAL
    known = set(byte_letters())
    for left, right in words.merges:
        assert left in known and right in known, "a merge needs parts that earlier merges made"
        known.add(left + right)
    assert known == set(words.tokens) - set(SPECIAL)


def test_any_text_survives_the_tokenizer() -> None:
    chooser = random.Random(1)
    texts = ["", "plain words", "tab\tnul\0 bell\a", "äöü ß 漢字 🙂 \u202e", "  many   spaces \r\n\r\n"]
    texts += ["".join(chr(chooser.randrange(0xD800)) for _ in range(100)) for _ in range(10)]
    for text in texts:
        assert decode(encode(text)) == text
    assert len(encode("the same prompt")) < len("the same prompt") / 2, "merges should shorten plain words"
