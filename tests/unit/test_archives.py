"""Archives of others: nothing of them comes to lie outside its folder, with Python's own filter or without it."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from pyrun import archives

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a newer Python that is not asked to filter


@pytest.fixture(params=["filter", "no filter"], autouse=True)
def python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "no filter":
        monkeypatch.setattr(archives, "FILTER", None)
    elif archives.FILTER is None:
        pytest.skip("this Python has no filter")


def file(name: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = 4
    return member


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def unpack(tmp_path: Path, *members: tarfile.TarInfo) -> Path:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"text"))
    packed.seek(0)
    folder = tmp_path / "around" / "folder"
    folder.mkdir(parents=True)
    with tarfile.open(fileobj=packed) as tar:
        archives.extract_all(tar, folder)
    return folder


def test_files_folders_and_links_within_are_unpacked(tmp_path: Path) -> None:
    folder = unpack(
        tmp_path,
        special("lib", tarfile.DIRTYPE),
        file("lib/a"),
        special("here", tarfile.SYMTYPE, "lib"),
        special("lib/up", tarfile.SYMTYPE, "../lib/a"),
        special("same", tarfile.LNKTYPE, "lib/a"),
    )
    for name in ("lib/a", "here/a", "lib/up", "same"):
        assert (folder / name).read_bytes() == b"text"


@pytest.mark.parametrize(
    "members",
    [
        [file("../escaped")],
        [file("a/../../escaped")],
        [special("escaped", tarfile.SYMTYPE, "..")],
        [special("escaped", tarfile.SYMTYPE, "/etc")],
        [special("escaped", tarfile.LNKTYPE, "../outside")],
        [special("in", tarfile.SYMTYPE, "."), special("in/up", tarfile.SYMTYPE, "../.."), file("in/up/escaped")],
        [special("escaped", tarfile.FIFOTYPE)],
        [special("escaped", tarfile.CHRTYPE)],
    ],
    ids=["path", "path within", "link", "absolute link", "hard link", "link through a link", "pipe", "device"],
)
def test_what_leads_outside_is_refused(tmp_path: Path, members: list[tarfile.TarInfo]) -> None:
    (tmp_path / "around").mkdir()
    (tmp_path / "around" / "outside").write_text("mine")
    with pytest.raises(tarfile.TarError):
        unpack(tmp_path, *members)
    assert not list(tmp_path.rglob("escaped"))
    assert (tmp_path / "around" / "outside").read_text() == "mine"
