"""The patch series on a small upstream made for the test: real git, real patches."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from pyrun.errors import UserError
from pyrun.home import Home
from pyrun.upstream import patches, source
from pyrun.upstream.git import Git

HEADER = """Subject: {subject}

Why: the test needs it.
On rebase: nothing to look at.
Forwarded: not-needed
"""

DIFF = """diff --git a/{file} b/{file}
--- a/{file}
+++ b/{file}
@@ -1,3 +1,3 @@
 one
-{old}
+{new}
 three
"""


@dataclass(frozen=True)
class Project:
    home: Home
    upstream: Path

    def prepare(self, *, clean: bool = False) -> source.Source:
        return source.prepare(self.home, str(self.upstream), clean=clean)

    def add(self, name: str, subject: str, file: str, old: str, new: str) -> Path:
        path = self.home.patches / name
        path.write_text(HEADER.format(subject=subject) + "\n" + DIFF.format(file=file, old=old, new=new))
        with (self.home.patches / "series").open("a") as series:
            series.write(f"{name}\n")
        return path

    def text(self, file: str) -> str:
        return (self.home.source / file).read_text()

    def edit(self, file: str, old: str, new: str) -> None:
        path = self.home.source / file
        path.write_text(path.read_text().replace(old, new))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    upstream = tmp_path / "upstream"
    upstream.mkdir()
    for file in ("a.txt", "b.txt"):
        (upstream / file).write_text("one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\n")
    git = Git(upstream)
    git.run("init", "--quiet")
    git.run("add", ".")
    git.run("commit", "--quiet", "-m", "upstream")
    root = tmp_path / "clone"
    (root / "llama.cpp").mkdir(parents=True)
    (root / "patches").mkdir()
    (root / "patches" / "series").write_text("# the series\n")
    commit, tree = git.run("rev-parse", "HEAD"), git.run("rev-parse", "HEAD^{tree}")
    (root / "llama.cpp" / "upstream.toml").write_text(
        '[pypi]\npackage = "p"\nversion = "1"\nfile = "p-1.tar.gz"\nsha256 = "0"\npath = "vendor"\n'
        f'[git]\nrepository = "{upstream.as_uri()}"\ncommit = "{commit}"\ntree = "{tree}"\n'
    )
    project = Project(Home(root), upstream)
    project.add("0010-first.patch", "first", "a.txt", "two", "2")
    project.add("0020-second.patch", "second", "b.txt", "two", "zwei")
    return project


def test_series_is_applied_and_applying_it_again_changes_nothing(project: Project) -> None:
    first = project.prepare()
    assert project.text("a.txt").startswith("one\n2\n") and project.text("b.txt").startswith("one\nzwei\n")
    before = (project.home.source / "a.txt").stat().st_mtime_ns
    assert project.prepare() == first
    assert (project.home.source / "a.txt").stat().st_mtime_ns == before
    assert not first.edited


def test_changed_patch_leaves_no_old_text_behind(project: Project) -> None:
    project.prepare()
    path = project.home.patches / "0010-first.patch"
    path.write_text(path.read_text().replace("+2", "+II"))
    untouched = (project.home.source / "b.txt").stat().st_mtime_ns
    project.prepare()
    assert project.text("a.txt").startswith("one\nII\n")
    # Only what differs is written: a rebuild compiles no more than it must.
    assert (project.home.source / "b.txt").stat().st_mtime_ns == untouched


def test_broken_hunk_is_named(project: Project) -> None:
    project.prepare()
    path = project.home.patches / "0020-second.patch"
    path.write_text(path.read_text().replace("-two", "-drei"))
    with pytest.raises(
        UserError, match=r"0020-second.patch does not apply to llama.cpp \w+ .*: b.txt, hunk 1 \(line 1\)"
    ):
        project.prepare()
    assert project.text("b.txt").startswith("one\nzwei\n"), "the tree was touched"


def test_garbled_patch_is_an_error(project: Project) -> None:
    path = project.home.patches / "0010-first.patch"
    path.write_text(path.read_text().replace("@@ -1,3 +1,3 @@", "@@ -1,9 +1,9 @@"))
    with pytest.raises(UserError, match="0010-first.patch is not a valid patch"):
        project.prepare()


def test_patch_is_not_applied_with_fuzz(project: Project) -> None:
    path = project.home.patches / "0010-first.patch"
    path.write_text(path.read_text().replace(" three", " 3"))
    with pytest.raises(UserError, match="does not apply"):
        project.prepare()


def test_offset_is_noticed(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    path = project.home.patches / "0010-first.patch"
    path.write_text(
        path.read_text().replace("@@ -1,3 +1,3 @@\n one\n-two\n+2\n three", "@@ -2,3 +2,3 @@\n four\n-five\n+5\n six")
    )
    project.prepare()
    assert "offset" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("breakage", "expected"),
    [
        (
            lambda f: (f / "0010-first.patch").unlink(),
            "0010-first.patch is listed in series, but there is no such file",
        ),
        (lambda f: (f / "0030-new.patch").write_text("x"), "0030-new.patch is not listed in series"),
        (lambda f: (f / "series").write_text("0020-second.patch\n0010-first.patch\n"), "not in the order"),
        (lambda f: (f / "series").write_text("0020-second.patch\n" * 2), "0020-second.patch is listed twice"),
        (
            lambda f: (f / "0010-first.patch").write_text((f / "0010-first.patch").read_text().replace("Why:", "How:")),
            "0010-first.patch has no `Why:` in its header",
        ),
        (lambda f: (f / "0010-first.patch").write_text(HEADER.format(subject="x")), "0010-first.patch changes nothing"),
    ],
)
def test_broken_series_is_refused(project: Project, breakage: object, expected: str) -> None:
    assert callable(breakage)
    breakage(project.home.patches)
    assert any(expected in problem for problem in patches.series_problems(project.home.patches))
    with pytest.raises(UserError, match="the patch series is broken"):
        project.prepare()


def test_edits_are_kept_when_the_series_changes(project: Project) -> None:
    project.prepare()
    project.edit("a.txt", "eight", "8")
    assert project.prepare().edited, "edits are built while the series stays"
    path = project.home.patches / "0010-first.patch"
    path.write_text(path.read_text().replace("+2", "+II"))
    with pytest.raises(UserError, match="has edits that would be lost"):
        project.prepare()
    assert "8" in project.text("a.txt")


def test_export_brings_edits_back(project: Project) -> None:
    project.prepare()
    project.edit("a.txt", "eight", "8")
    assert "0010-first.patch" in source.export_patches(project.home, None)
    assert "+8" in (project.home.patches / "0010-first.patch").read_text()
    assert not project.prepare().edited
    project.prepare(clean=True)
    assert project.text("a.txt") == "one\n2\nthree\nfour\nfive\nsix\nseven\n8\n"


def test_export_of_an_unchanged_tree_changes_no_patch(project: Project) -> None:
    project.prepare()
    source.export_patches(project.home, None)  # normalises the hand-written files
    assert source.export_patches(project.home, None) == []


def test_export_does_not_guess_where_an_edit_belongs(project: Project) -> None:
    project.prepare()
    (project.home.source / "new.txt").write_text("new\n")
    with pytest.raises(UserError, match="no patch of the series could take the changes to new.txt"):
        source.export_patches(project.home, None)
    assert source.export_patches(project.home, "second")[-1] == "0020-second.patch"
    assert "new.txt" in (project.home.patches / "0020-second.patch").read_text()


def test_commit_of_ones_own_becomes_a_patch(project: Project) -> None:
    project.prepare()
    project.edit("b.txt", "eight", "8")
    git = Git(project.home.source)
    git.run("commit", "--quiet", "--all", "-m", HEADER.format(subject="server: count in digits"))
    assert "0030-server-count-in-digits.patch" in source.export_patches(project.home, None)
    series = (project.home.patches / "series").read_text()
    assert series.startswith("# the series\n") and series.endswith("0030-server-count-in-digits.patch\n")
    project.prepare(clean=True)
    assert project.text("b.txt").endswith("seven\n8\n")


def test_pinned_commit_is_fetched_with_git(project: Project) -> None:
    fetched = source.prepare(project.home, "git")
    assert project.text("a.txt").startswith("one\n2\n")
    assert Git(project.home.source).commit_of(source.BASE) == fetched.pin.commit


def test_commit_that_is_gone_is_an_error(project: Project) -> None:
    pin = project.home.pin
    pin.write_text(re.sub(r'commit = "\w+"', f'commit = "{"0" * 40}"', pin.read_text()))
    with pytest.raises(UserError, match="git could not fetch 000000000 from file://"):
        source.prepare(project.home, "git")


def test_users_checkout_is_not_touched(project: Project) -> None:
    project.prepare()
    status = subprocess.run(["git", "status", "--porcelain"], cwd=project.upstream, capture_output=True, text=True)
    assert status.stdout == ""
    assert (project.upstream / "a.txt").read_text().startswith("one\ntwo\n")


def test_folder_that_is_no_checkout_is_an_error(project: Project, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a git checkout"):
        source.prepare(project.home, str(tmp_path))
    assert not list(project.home.source.parent.glob("source.new-*"))


def test_leftover_of_an_interrupted_import_goes(project: Project) -> None:
    leftover = project.home.source.with_name("source.new-1")
    leftover.mkdir()
    project.prepare()
    assert not leftover.exists()
