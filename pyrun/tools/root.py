"""The root folder: paths that a model gives lead nowhere else.

A path is walked folder by folder, each opened within the one before and without following links. A link is read and
walked in its turn. So it does not matter what somebody plants while a call is under way: a folder that is open stays
the one that was looked at, and `..` goes back to a folder that is open already, never to what the disk says.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from pyrun.errors import UserError
from pyrun.tools.tool import ToolError

MAX_LINKS = 40
MAX_PATH = 4096
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
KERNEL = (Path("/proc"), Path("/sys"))  # files there are not files, and links not links


class MissingError(ToolError):
    pass


@dataclass
class Place:
    """A name in an open folder."""

    folder: int
    name: str  # '.' for the root itself
    path: str  # from the root, with all links resolved


@dataclass
class _Walk:
    """The folders from the root to where the walk is, all of them open."""

    folders: list[int]
    names: list[str] = field(default_factory=list)

    def up(self) -> None:
        if len(self.folders) == 1:
            raise ToolError("this path leads out of the root folder")
        os.close(self.folders.pop())
        self.names.pop()

    def to_root(self) -> None:
        while len(self.folders) > 1:
            self.up()


class Root:
    def __init__(self, folder: Path, protected: Iterable[Path] = ()) -> None:
        """What is `protected` is out of reach, wherever it lies: what llama-run keeps for others, and its rules."""
        self.folder = Path(os.path.realpath(folder))
        if self.folder == Path("/"):
            raise UserError("the root folder of the tools must not be /", "give the folder of your work: --root DIR")
        try:
            self._root = os.open(self.folder, FOLDER)
        except OSError as error:
            raise UserError(
                f"{folder} cannot be the root folder: {error.strerror}", "give another: --root DIR"
            ) from error
        self._kernel = {path.stat().st_dev for path in KERNEL if path.is_dir()}
        # What a link leads to is protected by its name as well: it need not be there yet.
        self._protected = list(dict.fromkeys(path for own in protected for path in (own, Path(os.path.realpath(own)))))
        for above in (self.folder, *self.folder.parents):
            if self._is_protected(above.stat()):
                self.close()
                raise UserError(
                    f"{folder} cannot be the root folder of the tools: {above} is llama-run's own",
                    "give the folder of your work: --root DIR, or root in the table [tools] of llama-run.toml",
                )

    def close(self) -> None:
        os.close(self._root)

    @contextmanager
    def place(
        self, path: str, *, links: bool = True, make_folders: bool = False, may_miss: bool = False
    ) -> Iterator[Place]:
        """Where a path leads. The name itself need not exist; if it is a link, that is followed, too."""
        walk = _Walk([os.dup(self._root)])
        try:
            yield self._walk(walk, path, links, make_folders, may_miss)
        except FileNotFoundError as error:
            raise MissingError(f"{path}: there is no such file or folder") from error
        except OSError as error:
            raise ToolError(f"{path}: {error.strerror}") from error
        finally:
            for folder in walk.folders:
                os.close(folder)

    def resolve(self, path: str) -> str:
        """The path from the root, with all links resolved. What it leads through need not be there yet."""
        with self.place(path, may_miss=True) as place:
            return place.path

    def _walk(self, walk: _Walk, path: str, links: bool, make_folders: bool, may_miss: bool) -> Place:
        parts = self._parts(path)
        n_links = 0
        while parts:
            name = parts.pop(0)
            if name == "..":
                walk.up()
                continue
            target = self._link(walk.folders[-1], name)
            if target is not None:
                n_links += 1
                if not links or n_links > MAX_LINKS:
                    raise ToolError(f"{path}: {name} is a link" if not links else f"{path}: too many links")
                if target.startswith("/"):
                    walk.to_root()
                parts = self._parts(target) + parts
            elif parts:
                try:
                    self._enter(walk, name, make_folders)
                except FileNotFoundError:
                    if not may_miss or ".." in parts:
                        raise
                    return Place(walk.folders[-1], name, "/".join([*walk.names, name, *parts]))
            else:
                return self.checked(Place(walk.folders[-1], name, "/".join([*walk.names, name])))
        if not walk.names:
            return Place(walk.folders[-1], ".", ".")
        name = walk.names[-1]
        return Place(walk.folders[-2], name, "/".join(walk.names))

    def _parts(self, path: str) -> list[str]:
        if "\0" in path or len(path) > MAX_PATH:
            raise ToolError("a path has no NUL in it, and at most 4,096 letters")
        try:
            os.fsencode(path)
        except UnicodeEncodeError as error:
            raise ToolError("a path must be text that a file can be called") from error
        if path.startswith("/"):
            absolute = PurePosixPath(path)
            if ".." in absolute.parts or not absolute.is_relative_to(self.folder):
                raise ToolError(f"{path} is not in the root folder {self.folder}; give a path that starts there")
            return list(absolute.relative_to(self.folder).parts)
        return [part for part in path.split("/") if part not in ("", ".")]

    def _link(self, folder: int, name: str) -> str | None:
        try:
            return os.readlink(name, dir_fd=folder)
        except OSError:
            return None  # it is none, or is not there

    def _enter(self, walk: _Walk, name: str, make: bool) -> None:
        if make:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=walk.folders[-1])
        walk.folders.append(os.open(name, FOLDER, dir_fd=walk.folders[-1]))
        walk.names.append(name)
        self.check(os.fstat(walk.folders[-1]), "/".join(walk.names))

    def checked(self, place: Place) -> Place:
        """By its name, too: a link is not the file that it leads to, and what is protected may be one."""
        with suppress(FileNotFoundError):
            self.check(os.stat(place.name, dir_fd=place.folder, follow_symlinks=False), place.path)
        for own in self._protected:  # also what is not there yet
            with suppress(FileNotFoundError):
                if own.name == place.name and os.path.samestat(os.fstat(place.folder), own.parent.stat()):
                    raise _untouchable(place.path)
        return place

    def check(self, info: os.stat_result, path: str) -> None:
        if info.st_dev in self._kernel:
            raise ToolError(f"{path} belongs to the kernel; it is no file")
        if self._is_protected(info):
            raise _untouchable(path)

    def _is_protected(self, info: os.stat_result) -> bool:
        for own in self._protected:
            with suppress(OSError):
                if os.path.samestat(info, own.stat()):
                    return True
        return False

    @contextmanager
    def opened_file(self, path: str) -> Iterator[tuple[int, os.stat_result]]:
        """A plain file, open for reading."""
        with self.place(path) as place:
            handle = os.open(
                place.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=place.folder
            )
            try:
                info = os.fstat(handle)
                if not stat.S_ISREG(info.st_mode):
                    raise ToolError(f"{path} is no plain file")
                self.check(info, path)
                yield handle, info
            finally:
                os.close(handle)

    @contextmanager
    def opened_folder(self, path: str, *, links: bool = True) -> Iterator[int]:
        with self.place(path, links=links) as place:
            handle = os.open(place.name, FOLDER, dir_fd=place.folder)
            try:
                self.check(os.fstat(handle), path)
                yield handle
            finally:
                os.close(handle)


def _untouchable(path: str) -> ToolError:
    return ToolError(f"{path} is llama-run's own; tools do not touch it")
