"""Writes the golden files of format 1, from docs/formats.md and nothing else.

It shares no code with the native core: the C++ tests read these files and write them again byte for byte, so a change
on
either side is found. Run it only to add files; the existing ones are on users' disks and must never change.

    python tests/golden/make_golden.py [FOLDER]
"""

from __future__ import annotations

import hashlib
import struct
import sys
from pathlib import Path

MASK = (1 << 64) - 1
P1, P2, P3, P4, P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)


def rotl(value: int, by: int) -> int:
    return (value << by | value >> (64 - by)) & MASK


def absorb(lane: int, word: int) -> int:
    return rotl((lane + word * P2) & MASK, 31) * P1 & MASK


def xxh64(data: bytes, seed: int = 0) -> int:
    at = 0
    if len(data) >= 32:
        lanes = [(seed + P1 + P2) & MASK, (seed + P2) & MASK, seed, (seed - P1) & MASK]
        while at + 32 <= len(data):
            words = struct.unpack_from("<4Q", data, at)
            lanes = [absorb(lane, word) for lane, word in zip(lanes, words, strict=True)]
            at += 32
        hash_ = sum(rotl(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)) & MASK
        for lane in lanes:
            hash_ = ((hash_ ^ absorb(0, lane)) * P1 + P4) & MASK
    else:
        hash_ = (seed + P5) & MASK
    hash_ = (hash_ + len(data)) & MASK
    while at + 8 <= len(data):
        hash_ = (rotl(hash_ ^ absorb(0, struct.unpack_from("<Q", data, at)[0]), 27) * P1 + P4) & MASK
        at += 8
    if at + 4 <= len(data):
        hash_ = (rotl(hash_ ^ struct.unpack_from("<I", data, at)[0] * P1 & MASK, 23) * P2 + P3) & MASK
        at += 4
    for byte in data[at:]:
        hash_ = rotl(hash_ ^ byte * P5 & MASK, 11) * P1 & MASK
    hash_ = (hash_ ^ hash_ >> 33) * P2 & MASK
    hash_ = (hash_ ^ hash_ >> 29) * P3 & MASK
    return hash_ ^ hash_ >> 32


def blake(*parts: bytes) -> bytes:
    return hashlib.blake2b(b"".join(parts), digest_size=16).digest()


def token_bytes(tokens: list[int]) -> bytes:
    return struct.pack(f"<{len(tokens)}i", *tokens)


# The example: 10 tokens, pages of 4, for the model whose fingerprint is 00 01 .. 0f.
FINGERPRINT = bytes(range(16))
PAGE_SIZE = 4
TOKENS = [1, 15043, 3186, 29991, 2, 1, 306, 626, 263, 1904]
CREATED_MS = 1_700_000_000_000
ROOT = blake(b"llama-run root 1", FINGERPRINT, struct.pack("<III", PAGE_SIZE, 0, 0))


def next_key(previous: bytes, tokens: list[int]) -> bytes:
    return blake(b"llama-run page 1", previous, struct.pack("<I", len(tokens)), token_bytes(tokens))


def key_at(n: int) -> bytes:
    key = ROOT
    for start in range(0, n, PAGE_SIZE):
        key = next_key(key, TOKENS[start : min(n, start + PAGE_SIZE)])
    return key


def conversation_hash(tokens: list[int]) -> int:
    value = 0xCBF29CE484222325
    for byte in token_bytes(tokens[:1024]):
        value = (value ^ byte) * 0x100000001B3 & MASK
    return value


def payload(n: int, seed: int) -> bytes:
    return bytes((seed * 31 + i * 7) & 0xFF for i in range(n))


def finish(kind: int, body: bytes, n_payload: int, flags: int, root: bytes) -> bytes:
    """Header, checksum and body: everything but the payload."""
    head_size = 144 + len(body)
    before = b"LRKVTIER" + struct.pack("<HHIQ", 1, kind, head_size, head_size + n_payload)
    after = (
        FINGERPRINT
        + bytes(16)
        + root
        + struct.pack("<qII", CREATED_MS, PAGE_SIZE, flags)
        + b"0.1.0".ljust(16, b"\0")
        + b"cpu".ljust(32, b"\0")
        + body
    )
    return before + struct.pack("<Q", xxh64(after, xxh64(before))) + after


def segment() -> bytes:
    bounds = [(0, 4), (4, 8), (8, 10)]
    payloads = [payload(6 * (p1 - p0), i) for i, (p0, p1) in enumerate(bounds)]
    at = 160 + 64 * len(bounds) + 4 * len(TOKENS)
    table = b""
    for (p0, p1), data in zip(bounds, payloads, strict=True):
        table += key_at(p1) + key_at(p0) + struct.pack("<IIQQQ", p0, p1, at, len(data), xxh64(data))
        at += len(data)
    body = struct.pack("<QII", 0x2A, len(bounds), len(TOKENS)) + table + token_bytes(TOKENS)
    return finish(1, body, sum(map(len, payloads)), 1, ROOT) + b"".join(payloads)


def anchor() -> bytes:
    data = payload(40, 9)
    tail = TOKENS[8:]
    body = key_at(10) + key_at(8)
    body += struct.pack("<IIQQQ", 10, len(tail), xxh64(token_bytes(TOKENS)), len(data), xxh64(data))
    return finish(2, body + token_bytes(tail), len(data), 0, ROOT) + data


def checkpoint() -> bytes:
    body = struct.pack("<QQIIIIII", conversation_hash(TOKENS), 7, 3, 10, 4, 3, 1, 2)
    for n in (4, 8, 10):
        body += key_at(n) + struct.pack("<I", n)
    body += key_at(10) + struct.pack("<I", 10)
    body += struct.pack("<IIII", 0, 0, 5, 1)
    return finish(3, body, 0, 2, ROOT)


def index() -> bytes:
    body = struct.pack("<QQqQII", conversation_hash(TOKENS), 9, CREATED_MS + 5000, 4, 1, 0)
    body += struct.pack("<IIQqQ", 3, 0, 9, CREATED_MS + 5000, 4)
    return finish(4, body, 0, 0, bytes(16))


FILES = {
    "000000000000002a.seg": segment,
    "anchor.anc": anchor,
    "ckpt-3.bin": checkpoint,
    "index.bin": index,
}


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "format-1"
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in FILES.items():
        (folder / name).write_bytes(make())
        print(folder / name)


if __name__ == "__main__":
    main()
