"""Tools for files: read, write, edit, list, delete, find, search. All of them stay in the root folder."""

from __future__ import annotations

import errno
import fnmatch
import itertools
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from pyrun.tools.root import FOLDER, MissingError, Place, Root
from pyrun.tools.tool import MAX_RESULT_CHARACTERS, Call, Tool, ToolError, flag, number, text

MAX_READ_BYTES = 1_000_000
MAX_SEARCHED_BYTES = 5_000_000  # of a file; larger ones are left out, and counted
MAX_ENTRIES = 2_000
MAX_VISITED = 200_000
MAX_SECONDS = 30.0
MAX_DEPTH = 64
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # the file is there and may be read, but we cannot
SKIPPED = (".git", ".hg", ".venv", "node_modules", "__pycache__")
# Calls of one round run beside one another: of two edits of one file, the second must read what the first has written.
CHANGING = threading.Lock()


class FileTools:
    def __init__(self, root: Root) -> None:
        self.root = root

    def tools(self) -> list[Tool]:
        path = text("A path from the root folder, such as src/main.c.")
        folder = text("A folder, from the root folder; the root folder itself if left out.")
        resolve = self.root.resolve
        return [
            Tool(
                "read_file",
                "Read a text file, or some of its lines. Each line has its number.",
                {
                    "path": path,
                    "first_line": number("The first line (1 if left out).", 1, 10**9),
                    "first_character": number("Where to begin in that line (1 if left out).", 1, 10**9),
                    "max_lines": number("How many lines at most.", 1, 10_000),
                },
                self.read_file,
                ("path",),
            ),
            Tool(
                "write_file",
                "Write a text file: a new one, with its folders, or in place of the one that is there.",
                {"path": path, "content": text("The whole content.")},
                self.write_file,
                ("path", "content"),
                changes=True,
                subject="path",
                settle=resolve,
            ),
            Tool(
                "edit_file",
                "Replace one piece of a text file by another. The old piece must be there exactly once.",
                {"path": path, "old": text("The piece as it stands in the file."), "new": text("What comes there.")},
                self.edit_file,
                ("path", "old", "new"),
                changes=True,
                subject="path",
                settle=resolve,
            ),
            Tool(
                "delete_file",
                "Delete a file or a link. Folders are not deleted.",
                {"path": path},
                self.delete_file,
                ("path",),
                changes=True,
                subject="path",
                settle=self._settle_link,
            ),
            Tool("file_exists", "Tell whether a path exists, and what it is.", {"path": path}, self.exists, ("path",)),
            Tool("list_directory", "List a folder: names, kinds and sizes.", {"path": folder}, self.list_directory),
            Tool(
                "find_files",
                "Find files by a pattern of their names, such as *.py or test_*.",
                {"pattern": text("The pattern, with * and ?."), "path": folder},
                self.find_files,
                ("pattern",),
            ),
            Tool(
                "search_text",
                "Find lines with a text in all files of a folder. The text is taken as it is; it is no pattern.",
                {
                    "text": text("What to look for, in one line."),
                    "path": folder,
                    "files": text("Only in files whose names fit this pattern, such as *.py."),
                    "ignore_case": flag("Whether A and a are the same."),
                },
                self.search_text,
                ("text",),
            ),
        ]

    def read_file(self, call: Call) -> str:
        lines = self._read(call.text("path")).splitlines()
        first, begin = call.number("first_line", 1), call.number("first_character", 1) - 1
        chosen = lines[first - 1 : first - 1 + call.number("max_lines", 2_000)]
        if begin and not (chosen and begin < len(chosen[0])):
            raise ToolError(f"line {first} has no character {begin + 1}")
        room = MAX_RESULT_CHARACTERS - 200
        if chosen and len(chosen[0]) - begin > room:
            end = begin + room
            cut = f"[line {first} is cut: characters {begin + 1} to {end} of {len(chosen[0])}"
            return f"{first}\t{chosen[0][begin:end]}\n{cut}; go on with first_character {end + 1}]"
        out: list[str] = []
        for number_, line in enumerate(chosen, first):
            rest = line if out else line[begin:]
            room -= len(rest) + 8
            if out and room < 0:
                break
            out.append(f"{number_}\t{rest}")
        last = first + len(out) - 1
        more = f"\n[lines {first} to {last} of {len(lines)}]" if last < len(lines) or first > 1 else ""
        return "\n".join(out) + more

    def write_file(self, call: Call) -> str:
        content = call.text("content")
        with CHANGING:
            self._write(call.text("path"), content)
        return f"{call.text('path')} is written: {len(content.encode('utf-8', 'replace')):,} bytes"

    def edit_file(self, call: Call) -> str:
        path, old = call.text("path"), call.text("old")
        with CHANGING:
            content = self._read(path)
            found = content.count(old) if old else 0
            if found != 1:
                raise ToolError(
                    f"the old piece is in {path} {found} times, not once; give a longer one as it stands there"
                )
            self._write(path, content.replace(old, call.text("new")))
        return f"{path} is changed"

    def delete_file(self, call: Call) -> str:
        path = call.text("path")
        folder, _, name = path.rpartition("/")
        with CHANGING, self.root.opened_folder(folder or ".", links=False) as handle:
            self.root.checked(Place(handle, name, path))
            if stat.S_ISDIR(os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode):
                raise ToolError(f"{path} is a folder; only files are deleted")
            os.unlink(name, dir_fd=handle)
        return f"{path} is deleted"

    def exists(self, call: Call) -> str:
        try:
            with self.root.place(call.text("path")) as place:
                return f"yes, {_kind(os.stat(place.name, dir_fd=place.folder, follow_symlinks=False))}"
        except MissingError:
            return "no"

    def list_directory(self, call: Call) -> str:
        rows: list[tuple[str, str]] = []
        with self.root.opened_folder(call.text("path", ".")) as handle, os.scandir(handle) as entries:
            for entry in entries:
                if len(rows) == MAX_ENTRIES:
                    rows.append(("\U0010ffff", f"[cut: more than {MAX_ENTRIES:,} entries]"))
                    break
                with suppress(FileNotFoundError):
                    rows.append((entry.name, f"{_shown(entry.name)}\t{_kind(entry.stat(follow_symlinks=False))}"))
        return "\n".join(row for _, row in sorted(rows)) or "the folder is empty"

    def find_files(self, call: Call) -> str:
        pattern = call.text("pattern")
        found = (
            _shown(path)
            for path, name, _ in self._files(call)
            if fnmatch.fnmatch(name, pattern) or fnmatch.fnmatch(path, pattern)
        )
        return _first_of(found, "files") or "no file has such a name"

    def search_text(self, call: Call) -> str:
        wanted, names = call.text("text"), call.text("files", "*")
        if not wanted or "\n" in wanted:
            raise ToolError("the text must be a part of one line")
        fold = call.flag("ignore_case")
        wanted = wanted.casefold() if fold else wanted
        n_left_out = 0

        def lines() -> Iterator[str]:
            nonlocal n_left_out
            for path, name, folder in self._files(call):
                if not fnmatch.fnmatch(name, names):
                    continue
                content = self._searchable(name, folder)
                if content is None:
                    n_left_out += 1
                    continue
                for n, line in enumerate(content.splitlines(), 1):
                    if wanted in (line.casefold() if fold else line):
                        yield f"{_shown(path)}:{n}: {line.strip()[:300]}"

        found = _first_of(lines(), "lines") or "nothing was found"
        return found + (f"\n[{n_left_out} large or binary files were left out]" if n_left_out else "")

    # Below the tools

    def _read(self, path: str) -> str:
        with self.root.opened_file(path) as (handle, info):
            if info.st_size > MAX_READ_BYTES:
                raise ToolError(f"{path} has {info.st_size:,} bytes; at most {MAX_READ_BYTES:,} are read")
            data = _read_up_to(handle, MAX_READ_BYTES + 1)
        if len(data) > MAX_READ_BYTES:
            raise ToolError(f"{path} has more than {MAX_READ_BYTES:,} bytes; at most that many are read")
        decoded = _as_text(data)
        if decoded is None:
            raise ToolError(f"{path} is binary, not text ({len(data):,} bytes)")
        return decoded

    def _write(self, path: str, content: str) -> None:
        """Whole or not at all, with the mode of the file that was there. Links were resolved before."""
        data = content.encode("utf-8", "replace")
        with self.root.place(path, links=False, make_folders=True) as place:
            if place.name == ".":
                raise ToolError("the root folder is no file")
            mode = 0o644
            with suppress(FileNotFoundError):
                before = os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
                if not stat.S_ISREG(before.st_mode):
                    raise ToolError(f"{path} is no plain file")
                mode = stat.S_IMODE(before.st_mode)
            temporary = f".{secrets.token_hex(8)}.tmp"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            handle = os.open(temporary, flags, mode, dir_fd=place.folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                    os.fchmod(file.fileno(), mode & 0o777)
                os.rename(temporary, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=place.folder)
                raise

    def _settle_link(self, path: str) -> str:
        """A link is deleted itself, not what it leads to: only the way to it is resolved."""
        folder, _, name = path.rstrip("/").rpartition("/")
        if name in ("", ".", ".."):
            raise ToolError(f"{path} names no file")
        above = self.root.resolve(folder or ("/" if path.startswith("/") else "."))
        return name if above == "." else f"{above}/{name}"

    def _files(self, call: Call) -> Iterator[tuple[str, str, int]]:
        """Plain files below a folder: path, name, and the open folder they are in. Links are not followed."""
        deadline = time.monotonic() + MAX_SECONDS
        numbers = itertools.count(1)

        def visit() -> None:
            if next(numbers) > MAX_VISITED or time.monotonic() > deadline or call.stopped.is_set():
                raise ToolError("there are too many files; look in a smaller folder")

        start = call.text("path", ".")
        with self.root.opened_folder(start) as top:
            yield from self._below("" if start in (".", "") else start.rstrip("/") + "/", top, visit)

    def _below(self, prefix: str, folder: int, visit: Callable[[], None]) -> Iterator[tuple[str, str, int]]:
        """A folder is open while it and what is below it are visited, so no more are open at once than lie in one
        another. Each is opened within the one above it, which stays the one that was looked at."""
        with os.scandir(folder) as entries:  # one more than may be visited, so that it is told if there are more
            found = sorted(itertools.islice(entries, MAX_VISITED + 1), key=lambda entry: entry.name)
        folders = []
        for entry in found:
            visit()
            if entry.is_dir(follow_symlinks=False) and entry.name not in SKIPPED:
                folders.append(entry.name)
            elif entry.is_file(follow_symlinks=False):
                yield prefix + entry.name, entry.name, folder
        for name in folders if prefix.count("/") < MAX_DEPTH else ():
            handle = _opened_within(folder, name, FOLDER)
            if handle is None:
                continue
            try:
                if self._is_open_to_tools(handle, prefix + name):
                    yield from self._below(f"{prefix}{name}/", handle, visit)
            finally:
                os.close(handle)

    def _is_open_to_tools(self, handle: int, path: str) -> bool:
        try:
            self.root.check(os.fstat(handle), path)
        except ToolError:
            return False
        return True

    def _searchable(self, name: str, folder: int) -> str | None:
        handle = _opened_within(folder, name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        if handle is None:
            return None
        try:
            info = os.fstat(handle)
            self.root.check(info, name)
            if not stat.S_ISREG(info.st_mode) or info.st_size > MAX_SEARCHED_BYTES:
                return None
            return _as_text(_read_up_to(handle, MAX_SEARCHED_BYTES))
        except (OSError, ToolError):
            return None
        finally:
            os.close(handle)


def _opened_within(folder: int, name: str, flags: int) -> int | None:
    """None where it went, or became something else, or may not be read."""
    try:
        return os.open(name, flags, dir_fd=folder)
    except OSError as error:
        if error.errno in EXHAUSTED:
            raise
        return None


def _read_up_to(handle: int, limit: int) -> bytes:
    """A file may have no end: the size that it tells is not believed."""
    parts = []
    left = limit
    while left > 0 and (part := os.read(handle, min(left, 1 << 20))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _as_text(data: bytes) -> str | None:
    if b"\0" in data[:8192]:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _kind(info: os.stat_result) -> str:
    if stat.S_ISDIR(info.st_mode):
        return "folder"
    if stat.S_ISLNK(info.st_mode):
        return "link"
    return f"file, {info.st_size:,} bytes" if stat.S_ISREG(info.st_mode) else "special file"


def _first_of(found: Iterable[str], what: str) -> str:
    """As many as a result has room for. No more is looked for: there may be millions, each with a long path."""
    rows: list[str] = []
    room = MAX_RESULT_CHARACTERS - 200
    for row in found:
        room -= len(row) + 1
        if len(rows) == MAX_ENTRIES or room < 0:
            rows.append(f"[cut: more than {len(rows):,} {what}]")
            break
        rows.append(row)
    return "\n".join(rows)


def _shown(name: str) -> str:
    return name.encode("utf-8", "replace").decode()
