"""Reads what a GGUF file says about itself, without its weights and without its vocabulary.

The gguf package keeps every token as an array of its own, which takes seconds for one model; a launcher that lists
twenty wants milliseconds. Long arrays are stepped over; `_Reader._skip_strings` says how that is quick and still exact.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any

from pyrun.errors import UserError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
KEPT_ELEMENTS = 4096  # so many of an array of numbers are kept: one for each layer, and room to spare
MOST_ENTRIES = 1 << 20  # no model has more keys or tensors

_STRING, _ARRAY = 8, 9
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_BEYOND = (struct.error, IndexError, OverflowError)  # a length or an offset leads out of the file
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")

# The type of a tensor has a name, values per block, and bytes per block.
TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
}


class BrokenModelError(UserError):
    """A file that no server can load; `reason` is the short form of the message, for a list."""

    def __init__(self, path: Path, reason: str, hint: str) -> None:
        super().__init__(f"{path}: {reason}", hint)
        self.reason = reason


@dataclass(frozen=True)
class Tensor:
    name: str
    elements: int
    bytes: int  # it is 0 where the type is not known here
    type: str


@dataclass(frozen=True)
class Skipped:
    """Stands for an array that was stepped over: the vocabulary and its like."""

    length: int


@dataclass(frozen=True)
class Gguf:
    """One file. Of the vocabulary and its like only the length is kept."""

    path: Path
    metadata: dict[str, Any] = field(repr=False)
    tensors: list[Tensor] = field(repr=False)
    size: int


def read_gguf(path: Path) -> Gguf:
    """Reads one file. It raises BrokenModelError for what is no GGUF file, is cut off or contradicts itself."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            head = file.read(256)
            if len(head) < 24 or not head.startswith(MAGIC):
                raise _not_gguf(path, head)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _read(path, data, size)
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {error.strerror or error}", "check the disk and who may read it"
        ) from error


def _read(path: Path, data: mmap.mmap, size: int) -> Gguf:
    version = _U32.unpack_from(data, 4)[0]
    if version not in VERSIONS:
        other = int.from_bytes(_U32.pack(version), "big")
        if other in VERSIONS:
            raise BrokenModelError(path, "is a big-endian GGUF file", "get the usual, little-endian one")
        raise BrokenModelError(
            path, f"has GGUF version {version}, which is not supported", "get the model in a current version (3)"
        )
    try:
        metadata, tensors, data_start = _Reader(data, quick=True).read()
        if _end(tensors, data_start) > size:
            raise _MalformedError  # a wrong step could look like this, so it is looked at again, exactly
    except (_MalformedError, *_BEYOND, UnicodeDecodeError):
        try:
            metadata, tensors, data_start = _Reader(data, quick=False).read()
        except _BEYOND as error:
            raise _cut_off(path, size, None) from error
        except (_MalformedError, UnicodeDecodeError) as error:
            raise BrokenModelError(path, "is damaged: its head makes no sense", "download it again") from error
    end = _end(tensors, data_start)
    if end > size:
        raise _cut_off(path, size, end)
    return Gguf(path, metadata, [tensor for tensor, _ in tensors], size)


class _MalformedError(Exception):
    pass


def _end(tensors: list[tuple[Tensor, int]], data_start: int) -> int:
    """The last tensor ends there."""
    return max((data_start + offset + tensor.bytes for tensor, offset in tensors), default=0)


class _Reader:
    def __init__(self, data: mmap.mmap, *, quick: bool) -> None:
        self._data = data
        self._size = len(data)
        self._quick = quick
        self._at = 8

    def read(self) -> tuple[dict[str, Any], list[tuple[Tensor, int]], int]:
        n_tensors, n_keys = self._u64(), self._u64()
        if n_tensors > MOST_ENTRIES or n_keys > MOST_ENTRIES:
            raise _MalformedError
        metadata: dict[str, Any] = {}
        for _ in range(n_keys):
            key = self._string()
            metadata[key] = self._value(self._u32())
        tensors = [self._tensor() for _ in range(n_tensors)]
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise _MalformedError
        return metadata, tensors, -(-self._at // alignment) * alignment

    def _u32(self) -> int:
        value: int = _U32.unpack_from(self._data, self._at)[0]
        self._at += 4
        return value

    def _u64(self) -> int:
        value: int = _U64.unpack_from(self._data, self._at)[0]
        self._at += 8
        return value

    def _string(self) -> str:
        length = self._u64()
        if length > self._size - self._at:
            raise IndexError
        text = self._data[self._at : self._at + length]
        self._at += length
        return text.decode("utf-8")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise _MalformedError
        layout = _SCALARS[kind]
        value = struct.unpack_from(layout, self._data, self._at)[0]
        self._at += struct.calcsize(layout)
        return value

    def _array(self) -> Any:
        kind, length = self._u32(), self._u64()
        if kind == _STRING:
            self._skip_strings(length)
            return Skipped(length)
        if kind not in _SCALARS:  # arrays of arrays are in no model
            raise _MalformedError
        layout = _SCALARS[kind]
        start, width = self._at, struct.calcsize(layout)
        self._at += length * width
        if self._at > self._size:
            raise IndexError
        if length > KEPT_ELEMENTS:
            return Skipped(length)
        return list(struct.unpack_from(f"<{length}{layout[1]}", self._data, start))

    def _skip_strings(self, length: int) -> None:
        """Each string has its length before it, so the exact way is to step from one to the next: a tenth of a second
        for a large vocabulary. The quick way looks for the next key of the tokenizer, which is there in every model,
        and is trusted only if everything behind it makes sense: the number of keys, the tensors, the length of the
        file. If anything does not, the file is read again the exact way."""
        if length > self._size // 8:
            raise IndexError
        if self._quick and length > KEPT_ELEMENTS:
            found = self._next_key(self._at + 8 * length, self._at + 64 * length)
            if found is not None:
                self._at = found
                return
        at, data, unpack = self._at, self._data, _U64.unpack_from
        for _ in repeat(None, length):
            at += unpack(data, at)[0] + 8
        if at > self._size:
            raise IndexError
        self._at = at

    def _next_key(self, start: int, end: int) -> int | None:
        mark = b"\0\0\0\0\0\0\0tokenizer."
        while (found := self._data.find(mark, start, min(end, self._size))) != -1:
            at = found - 1
            name = self._data[found + 7 : found + 7 + self._data[at]]
            if name.replace(b"_", b"").replace(b".", b"").isalnum() and name.islower():
                return at
            start = found + 1
        return None

    def _tensor(self) -> tuple[Tensor, int]:
        name = self._string()
        dimensions = self._u32()
        if dimensions > 8:
            raise _MalformedError
        elements = 1
        for _ in range(dimensions):
            elements *= self._u64()
        kind, offset = self._u32(), self._u64()
        known = TENSOR_TYPES.get(kind)
        n_bytes = elements // known[1] * known[2] if known else 0
        return Tensor(name, elements, n_bytes, known[0] if known else f"type {kind}"), offset


def _not_gguf(path: Path, head: bytes) -> BrokenModelError:
    start = head.lstrip()[:64].lower()
    if not head:
        return BrokenModelError(path, "is empty", "download it again")
    if head.startswith(MAGIC):
        return _cut_off(path, len(head), None)
    if start.startswith(b"version https://git-lfs"):
        return BrokenModelError(
            path, "is a pointer of Git LFS, not the model itself", "run `git lfs pull` in its folder"
        )
    if start.startswith((b"<!doctype", b"<html", b"<?xml")):
        return BrokenModelError(path, "is a web page, not a GGUF file", "download it again, by the file's own link")
    return BrokenModelError(
        path, "is not a GGUF file", "llama-run serves GGUF files; convert the model, or get it as GGUF"
    )


def _cut_off(path: Path, size: int, needed: int | None) -> BrokenModelError:
    if needed is None:
        reason = f"is cut off or damaged: its head speaks of more than the {size:,} bytes that are there"
    else:
        reason = f"is cut off: {size:,} of {needed:,} bytes are there"
    return BrokenModelError(path, reason, "download it again; a download that was interrupted may leave such a file")
