"""pyrun._kernels against independent computations with the standard library."""

from __future__ import annotations

import hashlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrun import _kernels

FINGERPRINT = bytes(range(16))

tokens = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=1100)


def fnv1a(values: list[int]) -> int:
    digest = 0xCBF29CE484222325
    for byte in b"".join(struct.pack("<i", value) for value in values[:1024]):
        digest = (digest ^ byte) * 0x100000001B3 % 2**64
    return digest


def blake2b(*parts: bytes) -> bytes:
    return hashlib.blake2b(b"".join(parts), digest_size=16).digest()


def root_key(page_size: int, name_space: bytes, adapters: list[tuple[bytes, float]]) -> bytes:
    parts = [b"llama-run root 1", FINGERPRINT, struct.pack("<II", page_size, len(name_space)), name_space]
    parts += [struct.pack("<I", len(adapters)), *(content + struct.pack("<f", scale) for content, scale in adapters)]
    return blake2b(*parts)


def page_keys(values: list[int], root: bytes, page_size: int) -> list[bytes]:
    keys = [root]
    for start in range(0, len(values) - page_size + 1, page_size):
        page = values[start : start + page_size]
        words = struct.pack(f"<I{page_size}i", page_size, *page)
        keys.append(blake2b(b"llama-run page 1", keys[-1], words))
    return keys[1:]


@given(tokens)
def test_conversation_hash_is_fnv1a(values: list[int]) -> None:
    assert _kernels.conversation_hash(values) == fnv1a(values)


@given(tokens, st.integers(1, 300), st.sampled_from(["", "alice", "ü"]), st.floats(width=32, allow_nan=False))
def test_page_keys_are_the_chain_in_the_design(
    values: list[int], page_size: int, name_space: str, scale: float
) -> None:
    adapters = [(b"a" * 16, scale)]
    root = root_key(page_size, name_space.encode(), adapters)
    assert _kernels.root_key(FINGERPRINT, page_size, name_space, adapters) == root
    assert _kernels.page_keys(values, FINGERPRINT, page_size, name_space, adapters) == page_keys(
        values, root, page_size
    )


def test_known_answers_stay() -> None:
    # Keys are file names: these values stand for every store that users have.
    assert _kernels.conversation_hash(range(1024)) == 0xB132CA6CEB3D4C25
    assert _kernels.root_key(FINGERPRINT, 4).hex() == "a7ba0d8e1b923af91c456db1d91872a8"
    assert [key.hex() for key in _kernels.page_keys(range(11), FINGERPRINT, 4)] == [
        "8ddc3e03138d4906454a5213e45d32e7",
        "ae688e4a05a2e03ac901de2c43e00129",
    ]


def test_bad_arguments_do_not_reach_the_hash() -> None:
    with pytest.raises(ValueError, match="page_size"):
        _kernels.root_key(FINGERPRINT, 0)
    with pytest.raises(ValueError, match="fingerprint must have 16 bytes, not 3"):
        _kernels.root_key(b"abc", 4)
    with pytest.raises(ValueError, match="adapter must have 16 bytes"):
        _kernels.root_key(FINGERPRINT, 4, "", [(b"", 1.0)])
    with pytest.raises(TypeError):
        _kernels.conversation_hash([2**31])


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("0123456789abcdef" * 2, True), ("0" * 31, False), ("0" * 33, False), ("A" * 32, False), ("\udcff" * 32, False)],
)
def test_a_fingerprint_has_32_small_hex_digits(name: str, is_one: bool) -> None:
    assert _kernels.is_fingerprint(name) == is_one


def test_a_user_has_a_folder_and_nobody_has_none() -> None:
    alice, nobody = _kernels.user_key("alice"), _kernels.user_key("")
    model, folder = bytes(range(16)), f"/kv/{bytes(range(16)).hex()}"
    assert _kernels.user_folder("/kv", model, alice) == f"{folder}/u/{alice.hex()}"
    assert nobody == bytes(16) and _kernels.user_folder("/kv", model, nobody) == folder


@pytest.mark.parametrize(
    ("text", "is_one"),
    [("", True), ("Bob_1-x", True), ("a" * 512, True), ("a" * 513, False), ("a.b", False), ("\n", False)],
)
def test_a_user_id_is_letters_digits_and_two_signs(text: str, is_one: bool) -> None:
    assert _kernels.is_user_id(text) == is_one
