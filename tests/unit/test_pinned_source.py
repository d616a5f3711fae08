"""Fetching and proving the pinned source, with a small sdist made for the test."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from pyrun.errors import UserError
from pyrun.home import Home
from pyrun.upstream import fetch, source
from pyrun.upstream.git import Git
from pyrun.upstream.pin import read_pin


def make_sdist(folder: Path, target: Path) -> tuple[str, str]:
    """An sdist like the pinned one, with files in vendor/x and their git objects beside. Gives commit and tree."""
    tree = folder / "tree"
    (tree / "src").mkdir(parents=True)
    (tree / "src" / "main.c").write_text("int main(void) { return 0; }\n")
    (tree / ".gitignore").write_text("*.bin\n")
    (tree / "tracked.bin").write_bytes(b"ignored, but tracked")
    (tree / "run").write_text("#!/bin/sh\n")
    (tree / "run").chmod(0o755)
    git = Git(tree)
    git.run("init", "--quiet")
    git.run("add", "--force", ".")
    git.run("commit", "--quiet", "-m", "upstream")
    with tarfile.open(target, "w:gz") as tar:
        for path in sorted(tree.iterdir()):
            if path.name != ".git":
                tar.add(path, f"p-1/vendor/x/{path.name}")
        tar.add(tree / ".git", "p-1/.git/modules/vendor/x")
        pointer = tarfile.TarInfo("p-1/vendor/x/.git")
        content = b"gitdir: ../../.git/modules/vendor/x\n"
        pointer.size = len(content)
        tar.addfile(pointer, io.BytesIO(content))
    return git.run("rev-parse", "HEAD"), git.run("rev-parse", "HEAD^{tree}")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "clone")
    home.downloads.mkdir(parents=True)
    home.patches.mkdir()
    (home.patches / "series").write_text("")
    sdist = home.downloads / "p-1.tar.gz"
    commit, tree = make_sdist(tmp_path, sdist)
    write_pin(home, fetch.sha256_of(sdist), commit, tree)
    return home


def write_pin(home: Home, sha256: str, commit: str, tree: str) -> None:
    home.pin.write_text(
        f'[pypi]\npackage = "p"\nversion = "1"\nfile = "p-1.tar.gz"\nsha256 = "{sha256}"\npath = "vendor/x"\n'
        f'[git]\nrepository = "r"\ncommit = "{commit}"\ntree = "{tree}"\n'
    )


def test_unpacked_tree_is_upstreams(home: Home) -> None:
    source.prepare(home)
    git = Git(home.source)
    assert git.run("rev-parse", "HEAD^{tree}") == read_pin(home.pin).tree
    assert (home.source / "tracked.bin").exists() and (home.source / "run").stat().st_mode & 0o100


def test_changed_byte_in_the_sdist_is_refused(home: Home) -> None:
    sdist = home.downloads / "p-1.tar.gz"
    content = bytearray(sdist.read_bytes())
    content[len(content) // 2] ^= 1
    sdist.write_bytes(content)
    with pytest.raises(UserError, match="p-1.tar.gz is not what the pin names") as caught:
        source.prepare(home)
    assert hashlib.sha256(content).hexdigest() in caught.value.message
    assert "delete that file" in (caught.value.hint or "")
    assert not home.source.exists()


def test_sdist_with_other_files_than_its_commit_is_refused(home: Home, tmp_path: Path) -> None:
    """A right hash is not enough: whoever writes the pin could be fooled by the package."""
    pin = read_pin(home.pin)
    unpacked = tmp_path / "unpacked"
    with tarfile.open(home.downloads / "p-1.tar.gz") as tar:
        tar.extractall(unpacked)
    (unpacked / "p-1" / "vendor" / "x" / "src" / "main.c").write_text("int main(void) { return 1; }\n")
    with tarfile.open(home.downloads / "p-1.tar.gz", "w:gz") as tar:
        tar.add(unpacked / "p-1", "p-1")
    write_pin(home, fetch.sha256_of(home.downloads / "p-1.tar.gz"), pin.commit, pin.tree)
    with pytest.raises(UserError, match="the unpacked source is not llama.cpp"):
        source.prepare(home)
    assert not home.source.exists()


def test_pin_that_names_another_commit_is_refused(home: Home) -> None:
    pin = read_pin(home.pin)
    write_pin(home, pin.sha256, "0" * 40, pin.tree)
    with pytest.raises(UserError, match="does not carry the upstream commit 0000"):
        source.prepare(home)


def test_broken_pin_is_an_error(home: Home) -> None:
    home.pin.write_text("[pypi\n")
    with pytest.raises(UserError, match="is not a valid pin"):
        source.prepare(home)


def test_package_that_pip_cannot_find_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(UserError, match="pip could not fetch llama-run-no-such-package 1") as caught:
        fetch.fetch("llama-run-no-such-package", "1", "x.tar.gz", "0" * 64, tmp_path)
    assert caught.value.hint
