"""Finding models by path, name and part of a name."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyrun.errors import UserError
from pyrun.home import Home
from pyrun.models.find import find_model, list_models


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    for name in (
        "Qwen3-8B-Q4_K_M.gguf",
        "Qwen3-8B-Q8_0.gguf",
        "sub/gpt-oss-20b.gguf",
        "big-00001-of-00003.gguf",
        "big-00002-of-00003.gguf",
        "big-00003-of-00003.gguf",
        "mmproj-Qwen3-8B.gguf",
        "Qwen3-8B-mmproj-F16.gguf",
        "Qwen3-8B-imatrix.gguf",
        "tiny-imatrix-Q4_0.gguf",
        "built-in/Small.gguf",
        "notes.txt",
    ):
        path = home.models / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 10)
    return home


def test_parts_companions_and_other_files_are_not_listed(home: Home) -> None:
    assert [(m.name, m.size) for m in list_models(home)] == [
        ("Qwen3-8B-Q4_K_M", 10),
        ("Qwen3-8B-Q8_0", 10),
        ("big", 30),
        ("gpt-oss-20b", 10),
        ("tiny-imatrix-Q4_0", 10),
        ("Small", 10),
    ]


@pytest.mark.parametrize(
    ("wanted", "file"),
    [
        ("Qwen3-8B-Q8_0", "Qwen3-8B-Q8_0.gguf"),
        ("Qwen3-8B-Q8_0.gguf", "Qwen3-8B-Q8_0.gguf"),
        ("q8_0", "Qwen3-8B-Q8_0.gguf"),
        ("oss", "gpt-oss-20b.gguf"),
        ("big", "big-00001-of-00003.gguf"),
        ("small", "Small.gguf"),
    ],
)
def test_name_finds_its_model(home: Home, wanted: str, file: str) -> None:
    assert find_model(home, wanted).path.name == file


def test_path_is_not_looked_up_as_a_name(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere.gguf").write_bytes(b"x")
    assert find_model(home, str(tmp_path / "elsewhere.gguf")).path == tmp_path / "elsewhere.gguf"
    monkeypatch.chdir(tmp_path)
    assert find_model(home, "elsewhere.gguf").path == tmp_path / "elsewhere.gguf"


def test_any_part_of_a_split_set_starts_at_the_first(home: Home) -> None:
    assert find_model(home, str(home.models / "big-00002-of-00003.gguf")).path.name == "big-00001-of-00003.gguf"


def test_link_of_a_hub_s_cache_keeps_its_name_and_its_parts(home: Home, tmp_path: Path) -> None:
    blobs, files = tmp_path / "hub" / "blobs", tmp_path / "hub" / "snapshots" / "1"
    blobs.mkdir(parents=True)
    files.mkdir(parents=True)
    names = ["whole.gguf", "huge-00001-of-00002.gguf", "huge-00002-of-00002.gguf"]
    for number, name in enumerate(names):
        (blobs / (str(number) * 64)).write_bytes(b"x" * 10)
        (files / name).symlink_to(Path("..") / ".." / "blobs" / (str(number) * 64))
    whole, huge = (find_model(home, str(files / ".." / "1" / name)) for name in names[:2])
    assert (whole.name, whole.path) == ("whole", files / "whole.gguf")
    assert (huge.name, huge.path, huge.size) == ("huge", files / "huge-00001-of-00002.gguf", 20)
    (tmp_path / "latest.gguf").symlink_to(home.models / "big-00001-of-00003.gguf")
    assert find_model(home, str(tmp_path / "latest.gguf")) == find_model(home, "big")


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("qwen", r"could be any of these models:\n  Qwen3-8B-Q4_K_M .*\n  Qwen3-8B-Q8_0"),
        ("llama", r"no model is called 'llama'; these are here:\n  Qwen3-8B-Q4_K_M"),
        ("/no/such/file.gguf", "there is no file /no/such/file.gguf"),
    ],
)
def test_wrong_name_lists_candidates(home: Home, wanted: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        find_model(home, wanted)


def test_folder_is_not_served(home: Home) -> None:
    with pytest.raises(UserError, match="is a folder"):
        find_model(home, str(home.models / "sub"))


def test_incomplete_split_set_is_not_started(home: Home) -> None:
    (home.models / "big-00002-of-00003.gguf").unlink()
    with pytest.raises(UserError, match="big is incomplete; missing part 2 of 3 in .*: big-00002-of-00003.gguf"):
        find_model(home, "big")


def test_empty_folder_is_called_empty(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no model is called 'x', and .*models is empty"):
        find_model(Home(tmp_path), "x")
