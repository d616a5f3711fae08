"""What goes into deps/: Vulkan headers by hash from a mirror, and a ROCm from the user's archive."""

from __future__ import annotations

import hashlib
import io
import json
import random
import shutil
import tarfile
from pathlib import Path

import pytest

from pyrun.build import vulkan_headers
from pyrun.build.rocm_sdk import RocmSdk, read_rocm_sdk, unpack_rocm_sdk
from pyrun.build.vulkan_headers import SHA256, VERSION, ensure_vulkan_headers
from pyrun.errors import UserError

# Programs of a Debian, as far as they are used.
PROGRAMS = {
    "apt-get": "cat {folder}/sites\n",
    "apt-helper": 'echo "$@" >> {folder}/calls\n'
    '[ -e {folder}/offline ] && echo "E: Could not resolve" >&2 && exit 100\necho package > "$3"\n',
    "dpkg-deb": '[ "$(cat "$2")" = package ] || exit 2\nmkdir -p "$3/usr/include/vulkan" "$3/usr/lib"\n'
    'echo "#define VK_HEADER_VERSION 309" > "$3/usr/include/vulkan/vulkan_core.h"\n',
}


@pytest.fixture
def debian(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "debian"
    folder.mkdir()
    for name, script in PROGRAMS.items():
        (folder / name).write_text(f"#!/bin/sh\n{script.format(folder=folder)}")
        (folder / name).chmod(0o755)
    (folder / "sites").write_text("http://m/debian-security\nhttp://mirror.example/debian/\n")
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(vulkan_headers, "APT_HELPER", str(folder / "apt-helper"))
    return folder


def test_headers_are_fetched_by_their_hash(tmp_path: Path, debian: Path, capsys: pytest.CaptureFixture[str]) -> None:
    include = ensure_vulkan_headers(tmp_path / "deps", "1.3.239")
    assert (include / "vulkan" / "vulkan_core.h").read_text() == "#define VK_HEADER_VERSION 309\n"
    said = " ".join(capsys.readouterr().err.split())
    assert f"the system's Vulkan headers (1.3.239) are too old for llama.cpp: fetching {VERSION}" in said
    verb, address, _, digest = (debian / "calls").read_text().split()
    assert (verb, digest) == ("download-file", f"SHA256:{SHA256}")
    assert address == f"http://mirror.example/debian/pool/main/v/vulkan-loader/libvulkan-dev_{VERSION}_amd64.deb"
    # Only the headers are kept, and fetched once.
    assert [path.name for path in (tmp_path / "deps").iterdir()] == [f"vulkan-headers-{VERSION}"]
    assert [path.name for path in include.parent.iterdir()] == ["include"]
    assert ensure_vulkan_headers(tmp_path / "deps", "1.3.239") == include
    assert len((debian / "calls").read_text().splitlines()) == 1


def test_headers_that_cannot_be_fetched_are_explained(tmp_path: Path, debian: Path) -> None:
    (debian / "offline").touch()
    with pytest.raises(UserError, match="could not fetch the Vulkan headers .*:\n  E: Could not resolve") as caught:
        ensure_vulkan_headers(tmp_path / "deps", "1.3.239")
    assert "set VULKAN_SDK" in (caught.value.hint or "")
    assert list((tmp_path / "deps").iterdir()) == []
    (debian / "offline").unlink()
    assert ensure_vulkan_headers(tmp_path / "deps", "1.3.239").is_dir()


def test_mirror_of_something_else_is_not_asked(tmp_path: Path, debian: Path) -> None:
    (debian / "sites").write_text("http://m/debian-security\n")
    with pytest.raises(UserError, match="apt names no mirror of Debian"):
        ensure_vulkan_headers(tmp_path / "deps", "1.3.239")
    assert not (debian / "calls").exists()


TREE = {
    "lib/cmake/hipblas/hipblas-config.cmake": b"hipblas",
    "lib/llvm/bin/clang++": b"clang",
    ".info/version": b"7.9.0\n",
}


def archive(path: Path, tree: dict[str, bytes], around: str = "", links: dict[str, str] | None = None) -> Path:
    with tarfile.open(path, "w:xz" if path.suffix == ".xz" else "w:gz") as tar:
        for name, data in tree.items():
            member = tarfile.TarInfo(f"{around}{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(f"{around}{name}")
            member.type, member.linkname = tarfile.SYMTYPE, target
            tar.addfile(member)
    return path


@pytest.mark.parametrize("around", ["", "rocm-7.9.0/"])
def test_rocm_is_unpacked_as_it_is(tmp_path: Path, around: str) -> None:
    file = archive(tmp_path / "rocm.tar.gz", TREE, around, {"llvm": "lib/llvm"})
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    folder = tmp_path / "deps" / "rocm"
    expected = RocmSdk("rocm.tar.gz", digest, "7.9.0")
    assert unpack_rocm_sdk(f"{file}#sha256={digest.upper()}", folder) == expected
    assert (folder / "llvm" / "bin" / "clang++").read_bytes() == b"clang"
    assert read_rocm_sdk(folder) == expected
    assert [path.name for path in folder.parent.iterdir()] == ["rocm"]
    # Again is nothing to do; another one takes its place.
    (folder / "mark").touch()
    assert unpack_rocm_sdk(str(file), folder) == expected and (folder / "mark").exists()
    other = archive(tmp_path / "newer.tar.gz", TREE | {".info/version": b"8.0.0"})
    assert unpack_rocm_sdk(str(other), folder).version == "8.0.0" and not (folder / "mark").exists()


@pytest.mark.parametrize(
    ("tree", "fragment", "message"),
    [
        (TREE, "#sha256=" + "0" * 64, "is not what was named\n  expected sha256 0000"),
        (TREE, "#sha256=12", "#sha256=12 is not a hash"),
        (TREE, "#md5=12", "#md5=12 is not a hash"),
        ({"README": b""}, "", "is not a ROCm SDK: it has no hipBLAS in it"),
        (TREE | {".info/version": b"5.7.1\n"}, "", "is ROCm 5.7.1; llama.cpp needs 6.1 or newer"),
        (TREE | {"../../escaped": b""}, "", "cannot be unpacked"),
    ],
)
def test_wrong_archive_replaces_no_rocm(tmp_path: Path, tree: dict[str, bytes], fragment: str, message: str) -> None:
    folder = tmp_path / "deps" / "rocm"
    unpack_rocm_sdk(str(archive(tmp_path / "good.tar.gz", TREE | {"good": b""})), folder)
    wrong = archive(tmp_path / "wrong.tar.gz", tree)
    with pytest.raises(UserError, match=message) as caught:
        unpack_rocm_sdk(f"{wrong}{fragment}", folder)
    assert caught.value.hint
    assert (folder / "good").exists() and json.loads((folder / "llama-run-sdk.json").read_text())[
        "file"
    ] == "good.tar.gz"
    assert [path.name for path in folder.parent.iterdir()] == ["rocm"] and not (tmp_path / "escaped").exists()


def test_file_that_is_no_archive_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "page.tar.gz").write_text("<!DOCTYPE html>")
    with pytest.raises(UserError, match="cannot be unpacked"):
        unpack_rocm_sdk(str(tmp_path / "page.tar.gz"), tmp_path / "deps" / "rocm")


@pytest.mark.parametrize("kind", ["gz", "xz"])
@pytest.mark.parametrize("is_cut_off", [True, False])
def test_archive_that_came_in_part_or_damaged_is_an_error(tmp_path: Path, kind: str, is_cut_off: bool) -> None:
    numbers = random.Random(1)
    tree = TREE | {"lib/libamd.so": "".join(str(numbers.random()) for _ in range(10_000)).encode()}
    file = archive(tmp_path / f"rocm.tar.{kind}", tree)
    sound = file.read_bytes()
    half = len(sound) // 2
    file.write_bytes(sound[:half] if is_cut_off else sound[:half] + numbers.randbytes(2000) + sound[half + 2000 :])
    with pytest.raises(UserError, match="cannot be unpacked"):
        unpack_rocm_sdk(str(file), tmp_path / "deps" / "rocm")
    assert list((tmp_path / "deps").iterdir()) == []


def test_rocm_that_is_there_already_needs_no_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = archive(tmp_path / "rocm.tar.gz", TREE)
    folder = tmp_path / "deps" / "rocm"
    sdk = unpack_rocm_sdk(str(file), folder)
    monkeypatch.setattr("pyrun.build.rocm_sdk.shutil.disk_usage", lambda folder: shutil._ntuple_diskusage(10, 9, 1))
    assert unpack_rocm_sdk(str(file), folder) == sdk


def test_rocm_is_not_unpacked_onto_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = archive(tmp_path / "rocm.tar.gz", TREE)
    monkeypatch.setattr("pyrun.build.rocm_sdk.shutil.disk_usage", lambda folder: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(UserError, match="needs about .*, and only 1 B are free"):
        unpack_rocm_sdk(str(file), tmp_path / "deps" / "rocm")
    assert not (tmp_path / "deps" / "rocm").exists()
