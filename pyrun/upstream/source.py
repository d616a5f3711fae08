"""Prepares llama.cpp/source: unpacked from the pin, proven to be upstream's, with our series on top.

The tree is a git repository of its own. `refs/llama-run/base` is the unpacked upstream, `refs/llama-run/applied` the
series as it was last applied, one commit per patch. Work of the user's (changed files, further commits) is what
differs from `applied`; it is built as it is, and never overwritten.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path

from pyrun import archives, console
from pyrun.errors import UserError
from pyrun.home import Home
from pyrun.upstream import fetch, patches
from pyrun.upstream.git import Git
from pyrun.upstream.pin import Pin, read_pin

BASE = "refs/llama-run/base"
APPLIED = "refs/llama-run/applied"


@dataclass(frozen=True)
class Source:
    tree: Path
    pin: Pin
    commit: str  # the tree's HEAD
    edited: bool  # it has changes that are in no commit


def prepare(home: Home, origin: str = "pypi", *, clean: bool = False) -> Source:
    """Makes llama.cpp/source what the pin and the series say. The caller holds the build lock.

    `origin` is `pypi`, `git`, or the path of a checkout.
    """
    pin = read_pin(home.pin)
    series = patches.read_series(home.patches)
    _remove_leftovers(home)
    if clean and home.source.exists():
        shutil.rmtree(home.source)
    git = Git(home.source)
    base = git.commit_of(BASE) if (home.source / ".git").is_dir() else None
    if base is None or not _is_wanted(git, base, pin, origin):
        if base is not None and _has_edits(git):
            raise _edits_in_the_way(home, "another upstream is wanted")
        base = _import(home, pin, origin)
    tip, offsets = patches.commit_series(git, base, series, _name(git, base, pin))
    for offset in offsets:
        console.say(f"warning: {offset}; export the series again")
    applied = git.commit_of(APPLIED)
    if tip != applied:
        if applied is not None and _has_edits(git):
            raise _edits_in_the_way(home, "the patch series has changed")
        git.run("reset", "--hard", "--quiet", tip)
        git.run("update-ref", APPLIED, tip)
        console.say(f"applied {len(series)} patch{'' if len(series) == 1 else 'es'} to {_name(git, base, pin)}")
    return Source(home.source, pin, git.run("rev-parse", "HEAD"), edited=_is_dirty(git))


def has_edits(home: Home) -> bool:
    """Says whether the source tree holds work that is in no patch."""
    return (home.source / ".git").is_dir() and _has_edits(Git(home.source))


def export_patches(home: Home, into: str | None) -> list[str]:
    """Writes the source tree's commits back to patches/; changed files go into the patch that `into` names.

    Without `into`, they go into the one patch that already touches them all. Gives the names of changed patches.
    """
    git = Git(home.source)
    base = git.commit_of(BASE) if (home.source / ".git").is_dir() else None
    if base is None:
        raise UserError("there is no source tree to export from", "`llama-run build` makes one")
    if _is_dirty(git):
        _fold_edits(git, base, into)
    changed = patches.export_series(git, base, home.patches)
    series = patches.read_series(home.patches)
    tip, _ = patches.commit_series(git, base, series, "the source tree")
    # The exported series is the tree: from here on nothing in it counts as an edit.
    git.run("reset", "--soft", tip)
    git.run("update-ref", APPLIED, tip)
    return changed


def _import(home: Home, pin: Pin, origin: str) -> str:
    """Unpacks upstream beside the old tree, proves it, and only then puts it in its place."""
    temporary = home.source.with_name(f"source.new-{os.getpid()}")
    try:
        if origin == "pypi":
            archive = fetch.fetch(pin.package, pin.version, pin.file, pin.sha256, home.downloads)
            with console.waiting(f"unpacking {archive.name}"):
                commit_object = _unpack(archive, pin, temporary)
            base = _commit_tree(Git(temporary), pin)
            _verify(Git(temporary), base, pin, commit_object)
        else:
            base = _fetch_commit(home, pin, origin, temporary)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise UserError(f"cannot unpack the source into {home.source.parent}: {error.strerror or error}") from error
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    if home.source.exists():
        shutil.rmtree(home.source)
    temporary.rename(home.source)
    git = Git(home.source)
    git.run("update-ref", BASE, base)
    git.run("update-ref", "HEAD", base)
    return base


def _unpack(archive: Path, pin: Pin, target: Path) -> bytes:
    """Unpacks the part of the sdist that is llama.cpp; gives the upstream commit object that the sdist carries."""
    root = pin.file.removesuffix(".tar.gz")
    inside = f"{root}/{pin.path}/"
    git_objects = f"{root}/.git/modules/{pin.path}/"
    store = target.with_name(target.name + ".objects")
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                if member.name.startswith(inside) and member.name != f"{inside}.git":
                    member.name = member.name.removeprefix(inside)
                    archives.extract(tar, member, target)
                elif member.name.startswith(git_objects) and member.name != f"{git_objects}config":
                    member.name = member.name.removeprefix(git_objects)
                    archives.extract(tar, member, store / ".git")
        result = Git(store).attempt("cat-file", "commit", pin.commit)
        if result.code != 0:
            raise UserError(f"{archive.name} does not carry the upstream commit {pin.commit}", "check the pin")
        return result.out.encode(errors="surrogateescape")
    except tarfile.TarError as error:
        raise UserError(f"{archive} cannot be unpacked: {error}", "delete it and run again") from error
    finally:
        shutil.rmtree(store, ignore_errors=True)


def _commit_tree(git: Git, pin: Pin) -> str:
    """Commits everything that lies in the tree, ignored files too: upstream tracks some that it ignores."""
    git.run("init", "--quiet")
    git.run("add", "--all", "--force", ".")
    tree = git.run("write-tree")
    return git.run("commit-tree", tree, "-m", f"llama.cpp {pin.commit}")


def _verify(git: Git, base: str, pin: Pin, commit_object: bytes) -> None:
    """Files -> tree -> commit: each must hash to what the pin names."""
    name = hashlib.sha1(b"commit %d\0" % len(commit_object) + commit_object).hexdigest()
    named_tree = commit_object.split(b"\n", 1)[0].decode()
    tree = git.run("rev-parse", f"{base}^{{tree}}")
    if name != pin.commit or named_tree != f"tree {pin.tree}" or tree != pin.tree:
        raise UserError(
            f"the unpacked source is not llama.cpp {pin.short_commit}: its tree is {tree}, the pin names {pin.tree}",
            "delete llama.cpp/dist and run again; if it happens twice, do not use this package",
        )


def _fetch_commit(home: Home, pin: Pin, origin: str, target: Path) -> str:
    """Takes the pinned commit from upstream's repository, or whatever a local checkout has at HEAD."""
    target.mkdir(parents=True)
    git = Git(target)
    git.run("init", "--quiet")
    repository, wanted = pin.repository, pin.commit
    if origin != "git":
        checkout = Path(origin).resolve()
        head = Git(checkout).commit_of("HEAD") if (checkout / ".git").exists() else None
        if head is None:
            raise UserError(f"{checkout} is not a git checkout of llama.cpp", "give the folder that holds its .git")
        repository, wanted = checkout.as_uri(), head
    with console.waiting(f"fetching {wanted[:9]} from {repository}"):
        fetched = git.attempt("fetch", "--quiet", "--depth=1", repository, wanted)
    if fetched.code != 0:
        raise UserError(
            f"git could not fetch {wanted[:9]} from {repository}:\n{fetched.err.strip()}",
            "check the network, or leave out --source to take the source by name through pip",
        )
    git.run("reset", "--hard", "--quiet", wanted)
    tree = git.run("rev-parse", f"{wanted}^{{tree}}")
    if tree != pin.tree:
        if origin == "git":
            raise UserError(f"commit {pin.short_commit} has tree {tree}, the pin names {pin.tree}", "check the pin")
        console.say(f"warning: {origin} is at {wanted[:9]}, not at the pinned {pin.short_commit}")
    return wanted


def _is_wanted(git: Git, base: str, pin: Pin, origin: str) -> bool:
    if origin in ("pypi", "git"):
        return git.run("rev-parse", f"{base}^{{tree}}") == pin.tree
    checkout = Path(origin).resolve()
    return (checkout / ".git").exists() and Git(checkout).commit_of("HEAD") == base


def _fold_edits(git: Git, base: str, into: str | None) -> None:
    git.run("add", "--all", ".")
    edited = set(git.run("diff", "--cached", "--name-only").split("\n"))
    commits = git.run("rev-list", "--reverse", f"{base}..HEAD").split()
    subject_of = {commit: git.run("show", "--no-patch", "--format=%s", commit) for commit in commits}
    if into is not None:
        owners = [commit for commit in commits if into in subject_of[commit]]
    else:
        touches = {c: set(git.run("diff", "--name-only", f"{c}^", c).split("\n")) for c in commits}
        owners = [c for c in commits if edited <= touches[c]]
    if len(owners) != 1:
        git.run("reset", "--quiet")
        which = "no patch" if not owners else "more than one patch"
        raise UserError(
            f"{which} of the series could take the changes to {', '.join(sorted(edited))}",
            f"name one with --into and a part of its subject, or commit them in {git.tree} with a header of their own",
        )
    git.run("commit", "--quiet", f"--fixup={owners[0]}")
    folded = git.attempt(
        "rebase",
        "--quiet",
        "--interactive",
        "--autosquash",
        base,
        env={"GIT_SEQUENCE_EDITOR": "true", "GIT_EDITOR": "true"},
    )
    if folded.code != 0:
        git.attempt("rebase", "--abort")
        git.run("reset", "--quiet", "--soft", "HEAD^")
        raise UserError(
            f"the changes conflict with a later patch when folded into {subject_of[owners[0]]!r}",
            f"commit them in {git.tree} yourself; the tree is as it was",
        )


def _name(git: Git, base: str, pin: Pin) -> str:
    if git.run("rev-parse", f"{base}^{{tree}}") == pin.tree:
        return f"llama.cpp {pin.short_commit} ({pin.package} {pin.version})"
    return f"llama.cpp {base[:9]} (not the pinned {pin.short_commit})"


def _is_dirty(git: Git) -> bool:
    return git.run("status", "--porcelain") != ""


def _has_edits(git: Git) -> bool:
    return _is_dirty(git) or git.commit_of("HEAD") not in (git.commit_of(APPLIED), git.commit_of(BASE))


def _edits_in_the_way(home: Home, why: str) -> UserError:
    return UserError(
        f"{why}, but {home.source} has edits that would be lost",
        "`llama-run build --export-patches` writes them to patches/; `llama-run build --clean` throws them away",
    )


def _remove_leftovers(home: Home) -> None:
    """An interrupted import leaves trees beside the real one."""
    for leftover in home.source.parent.glob("source.new-*"):
        shutil.rmtree(leftover, ignore_errors=True)
