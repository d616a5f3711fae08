"""Reads the patch series, checks it, turns it into commits on top of the pin, and writes it back."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pyrun.errors import UserError
from pyrun.upstream.git import Git

HEADER_FIELDS = ("Subject", "Why", "On rebase", "Forwarded")
PATCH_NAME = re.compile(r"\d{4}-[a-z0-9-]+\.patch")


@dataclass(frozen=True)
class Patch:
    path: Path
    header: str
    diff: str

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def changed_lines(self) -> int:
        return sum(1 for line in self.diff.splitlines() if re.match(r"[-+](?!--|\+\+)", line))


def read_series(folder: Path) -> list[Patch]:
    """Gives the patches in the order of the series file. Anything unlisted, missing or without a header is an error."""
    problems = series_problems(folder)
    if problems:
        raise UserError(
            "the patch series is broken:\n" + "\n".join(f"  {p}" for p in problems), "see patches/README.md"
        )
    return [_read_patch(folder / name) for name in _listed(folder)]


def series_problems(folder: Path) -> list[str]:
    """Says what is wrong with the files themselves, in a line each; whether they apply is told by `commit_series`."""
    listed = _listed(folder)
    present = {path.name for path in folder.glob("*.patch")}
    problems = [f"{name} is listed in series, but there is no such file" for name in listed if name not in present]
    problems += [f"{name} is not listed in series" for name in sorted(present - set(listed))]
    problems += [f"{name} is listed twice" for name in sorted({n for n in listed if listed.count(n) > 1})]
    problems += [f"{name} is not named NNNN-name.patch" for name in listed if not PATCH_NAME.fullmatch(name)]
    if listed != sorted(listed):
        problems.append("series is not in the order of the patches' numbers")
    for name in listed:
        if name in present:
            patch = _read_patch(folder / name)
            for field in HEADER_FIELDS:
                if not re.search(rf"^{field}: \S", patch.header, re.MULTILINE):
                    problems.append(f"{name} has no `{field}:` in its header")
            if not patch.diff:
                problems.append(f"{name} changes nothing")
    return problems


def commit_series(git: Git, base: str, patches: list[Patch], pin_name: str) -> tuple[str, list[str]]:
    """Commits each patch on top of base, without touching the work tree; gives the last commit and any offsets.

    The index is a temporary one, so a patch that does not apply leaves nothing behind.
    """
    offsets: list[str] = []
    tip = base
    with tempfile.TemporaryDirectory() as folder:
        env = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
        git.run("read-tree", base, env=env)
        for patch in patches:
            applied = git.attempt("apply", "--cached", "--verbose", "--whitespace=nowarn", str(patch.path), env=env)
            if applied.code != 0:
                raise _does_not_apply(patch, applied.err, pin_name)
            offsets += [f"{patch.name}: {line}" for line in applied.err.splitlines() if "offset" in line]
            tree = git.run("write-tree", env=env)
            tip = git.run("commit-tree", tree, "-p", tip, "-m", patch.header)
    return tip, offsets


def export_series(git: Git, base: str, folder: Path) -> list[str]:
    """Writes the commits between base and HEAD to the folder, one patch each; gives the names that changed."""
    commits = git.run("rev-list", "--reverse", f"{base}..HEAD").split()
    listed = _listed(folder)
    subjects = {_subject(_read_patch(folder / name).header): name for name in listed if (folder / name).exists()}
    names: list[str] = []
    changed: list[str] = []
    for commit in commits:
        header = git.run("show", "--no-patch", "--format=%B", commit)
        missing = [field for field in HEADER_FIELDS if not re.search(rf"^{field}: \S", header, re.MULTILINE)]
        if missing:
            raise UserError(
                f"commit {commit[:9]} in {git.tree} has no {', '.join(f'`{m}:`' for m in missing)} in its message",
                f"`git -C {git.tree} commit --amend` (or rebase) and write the header as patches/README.md shows",
            )
        name = subjects.get(_subject(header)) or _new_name(_subject(header), names)
        diff = git.run("diff", "--no-color", "--no-ext-diff", "--no-renames", f"{commit}^", commit)
        # Blob names say nothing to a reader and their length depends on the repository.
        diff = re.sub(r"^index [0-9a-f]+\.\.[0-9a-f]+( \d+)?\n", "", diff, flags=re.MULTILINE)
        text = f"{header.strip()}\n\n{diff}\n"
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            changed.append(name)
        names.append(name)
    for gone in sorted(set(listed) - set(names)):
        (folder / gone).unlink(missing_ok=True)
        changed.append(f"{gone} (removed)")
    if names != listed:
        _write_series(folder, names)
    return changed


def _listed(folder: Path) -> list[str]:
    series = folder / "series"
    if not series.is_file():
        raise UserError(f"{series} is missing", "restore it with `git checkout patches/series`")
    lines = (line.split("#", 1)[0].strip() for line in series.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line]


def _write_series(folder: Path, names: list[str]) -> None:
    """Keeps the comments that lead the file; the list below them is written anew."""
    lines = (folder / "series").read_text(encoding="utf-8").splitlines()
    comments = [line for line in lines if line.startswith("#")]
    (folder / "series").write_text("\n".join([*comments, *names]) + "\n", encoding="utf-8")


def _read_patch(path: Path) -> Patch:
    header, mark, diff = path.read_text(encoding="utf-8").partition("diff --git ")
    return Patch(path, header.strip(), mark + diff)


def _subject(header: str) -> str:
    match = re.search(r"^Subject: (.+)$", header, re.MULTILINE)
    return match.group(1).strip() if match else ""


def _new_name(subject: str, before: list[str]) -> str:
    """It has the next free number in steps of ten, and the subject as a file name."""
    number = (int(before[-1][:4]) // 10 + 1) * 10 if before else 10
    return f"{number:04d}-{re.sub(r'[^a-z0-9]+', '-', subject.lower()).strip('-')[:60].strip('-')}.patch"


def _does_not_apply(patch: Patch, stderr: str, pin_name: str) -> UserError:
    """Names file, hunk and pin. git tells the file and the line at which the hunk starts."""
    where = re.search(r"^error: patch failed: (.+):(\d+)$", stderr, re.MULTILINE)
    if where is None:
        broken = re.search(r"^error: (.+)$", stderr, re.MULTILINE)
        return UserError(
            f"{patch.name} is not a valid patch for {pin_name}: {broken.group(1) if broken else stderr.strip()}",
            "restore it with `git checkout patches/`",
        )
    file, line = where.group(1), int(where.group(2))
    return UserError(
        f"{patch.name} does not apply to {pin_name}: {file}, hunk {_hunk_number(patch.diff, file, line)} (line {line})",
        "patches/README.md tells how to rebase the series; `git checkout patches/` restores the committed one",
    )


def _hunk_number(diff: str, file: str, line: int) -> int:
    current, number = "", 0
    for text in diff.splitlines():
        if text.startswith("--- a/"):
            current, number = text[len("--- a/") :], 0
        elif text.startswith("@@ ") and current == file:
            number += 1
            start = re.match(r"@@ -(\d+)", text)
            if start and int(start.group(1)) == line:
                return number
    return 0
