"""docs/formats.md and kernels/kvtier/format.h must say the same, and the golden files must follow both."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOC = (ROOT / "docs" / "formats.md").read_text()
HEADER = (ROOT / "kernels" / "kvtier" / "format.h").read_text()

SIZES = {"u16": 2, "u32": 4, "u64": 8, "i64": 8}


def header_constants() -> dict[str, int]:
    found = {}
    for name, value in re.findall(r"^constexpr \w+ (\w+) += ([^;{]+);", HEADER, re.MULTILINE):
        shifted = re.fullmatch(r"uint\d+_t\((\d+)\) << (\d+)", value)
        found[name] = int(shifted[1]) << int(shifted[2]) if shifted else int(value)
    return found


def header_field_sizes() -> dict[str, int]:
    found = {}
    for name, comment in re.findall(r"^constexpr size_t (\w+) += \d+; +// (.+)$", HEADER, re.MULTILINE):
        size = re.match(r"(\d+) bytes", comment)
        found[name] = int(size[1]) if size else SIZES.get(comment.split()[0].rstrip(","), 0)
    return found


def doc_offsets() -> list[tuple[int, str, str]]:
    rows = re.findall(r"^\| (\d+) \| *(\d*) *\| `(\w+)` \|", DOC, re.MULTILINE)
    return [(int(offset), size, name) for offset, size, name in rows]


def test_tables_have_the_constants() -> None:
    constants, sizes = header_constants(), header_field_sizes()
    rows = doc_offsets()
    assert len(rows) > 50
    for offset, size, name in rows:
        assert constants[name] == offset, name
        if size:
            assert sizes[name] == int(size), name


def test_every_constant_is_in_the_tables() -> None:
    documented = {name for _, _, name in doc_offsets()} | set(re.findall(r"^\| `(\w+)` \| \d+ \|", DOC, re.MULTILINE))
    for name in header_constants():
        if not name.startswith(("kind_", "flag_", "version")):
            assert name in documented, name


def test_no_table_has_a_gap() -> None:
    tables: list[list[tuple[int, int]]] = []
    for offset, size, _ in doc_offsets():
        if offset in (0, 144) and size:
            tables.append([])
        tables[-1].append((offset, int(size or 0)))
    for table in tables:
        for (start, length), (following, _) in itertools.pairwise(table):
            assert start + length == following


def test_limits_are_those_of_the_page() -> None:
    constants = header_constants()
    for name, value in re.findall(r"^\| `(\w+)` \| (\d+) \|", DOC, re.MULTILINE):
        assert constants[name] == int(value), name


def test_golden_files_are_unchanged(tmp_path: Path) -> None:
    golden = ROOT / "tests" / "golden"
    subprocess.run([sys.executable, golden / "make_golden.py", tmp_path], check=True, capture_output=True)
    names = sorted(str(path.relative_to(golden)) for path in golden.glob("format-*/*"))
    assert names == sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    for name in names:
        assert (golden / name).read_bytes() == (tmp_path / name).read_bytes(), name


def test_the_worked_example_is_the_golden_file() -> None:
    data = (ROOT / "tests" / "golden" / "format-1" / "000000000000002a.seg").read_bytes()
    lines = re.findall(r"^([0-9a-f]{4})  ((?:[0-9a-f]{2} +)+)", DOC, re.MULTILINE)
    assert len(lines) > 15
    for offset, text in lines:
        expected = bytes.fromhex(text.replace(" ", ""))[:16]  # a remark may begin like a byte
        at = int(offset, 16)
        assert data[at : at + len(expected)] == expected, offset
