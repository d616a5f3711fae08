"""Writes the golden files of both formats, from docs/formats.md and nothing else.

It shares no code with the native core: the C++ tests read these files and write them again byte for byte, so a change
on either side is found. Run it only to add files; the existing ones are on users' disks and must never change.

    python tests/golden/make_golden.py [FOLDER]
"""

from __future__ import annotations

import hashlib
import struct
import sys
from pathlib import Path

from xxhash import xxh3_64_intdigest


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
        value = (value ^ byte) * 0x100000001B3 & (1 << 64) - 1
    return value


def payload(n: int, seed: int) -> bytes:
    return bytes((seed * 31 + i * 7) & 0xFF for i in range(n))


def finish(kind: int, body: bytes, n_payload: int, flags: int, root: bytes, version: int = 1) -> bytes:
    """Header, checksum and body: everything but the payload."""
    head_size = 144 + len(body)
    before = b"LRKVTIER" + struct.pack("<HHIQ", version, kind, head_size, head_size + n_payload)
    after = (
        FINGERPRINT
        + bytes(16)
        + root
        + struct.pack("<qII", CREATED_MS, PAGE_SIZE, flags)
        + b"0.1.0".ljust(16, b"\0")
        + b"cpu".ljust(32, b"\0")
        + body
    )
    return before + struct.pack("<Q", xxh3_64_intdigest(before + after)) + after


def segment() -> bytes:
    bounds = [(0, 4), (4, 8), (8, 10)]
    payloads = [payload(6 * (p1 - p0), i) for i, (p0, p1) in enumerate(bounds)]
    at = 160 + 64 * len(bounds) + 4 * len(TOKENS)
    table = b""
    for (p0, p1), data in zip(bounds, payloads, strict=True):
        table += key_at(p1) + key_at(p0) + struct.pack("<IIQQQ", p0, p1, at, len(data), xxh3_64_intdigest(data))
        at += len(data)
    body = struct.pack("<QII", 0x2A, len(bounds), len(TOKENS)) + table + token_bytes(TOKENS)
    return finish(1, body, sum(map(len, payloads)), 1, ROOT) + b"".join(payloads)


def anchor() -> bytes:
    data = payload(40, 9)
    tail = TOKENS[8:]
    body = key_at(10) + key_at(8)
    body += struct.pack(
        "<IIQQQ", 10, len(tail), xxh3_64_intdigest(token_bytes(TOKENS)), len(data), xxh3_64_intdigest(data)
    )
    return finish(2, body + token_bytes(tail), len(data), 0, ROOT) + data


def checkpoint_body() -> bytes:
    body = struct.pack("<QQIIIIII", conversation_hash(TOKENS), 7, 3, 10, 4, 3, 1, 2)
    for n in (4, 8, 10):
        body += key_at(n) + struct.pack("<I", n)
    body += key_at(10) + struct.pack("<I", 10)
    return body + struct.pack("<IIII", 0, 0, 5, 1)


def checkpoint() -> bytes:
    return finish(3, checkpoint_body(), 0, 2, ROOT)


def titled_checkpoint() -> bytes:
    title = "Grüße".encode()
    return finish(3, checkpoint_body() + struct.pack("<II", 6, len(title)) + title, 0, 2, ROOT, version=2)


def index_body() -> bytes:
    body = struct.pack("<QQqQII", conversation_hash(TOKENS), 9, CREATED_MS + 5000, 4, 1, 0)
    return body + struct.pack("<IIQqQ", 3, 0, 9, CREATED_MS + 5000, 4)


def index() -> bytes:
    return finish(4, index_body(), 0, 0, bytes(16))


def kept_index() -> bytes:
    return finish(4, index_body() + struct.pack("<qq", 3_600_000, 604_800_000), 0, 0, bytes(16), version=2)


FILES = {
    "format-1/000000000000002a.seg": segment,
    "format-1/anchor.anc": anchor,
    "format-1/ckpt-3.bin": checkpoint,
    "format-1/index.bin": index,
    "format-2/ckpt-3.bin": titled_checkpoint,
    "format-2/index.bin": kept_index,
}


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    for name, make in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(make())
        print(folder / name)


if __name__ == "__main__":
    main()
