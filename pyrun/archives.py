"""Unpacking archives that others have made: nothing of them comes to lie outside its folder."""

from __future__ import annotations

import tarfile
import zlib
from contextlib import suppress
from pathlib import Path

# Every compression has its own words for a file that is cut off or damaged.
DAMAGED: tuple[type[Exception], ...] = (tarfile.TarError, EOFError, zlib.error)
with suppress(ImportError):  # a Python may be built without it, and then opens no such archive
    import lzma

    DAMAGED += (lzma.LZMAError,)

# The first releases of 3.10 and 3.11 do not have it, among them the Python of Debian 12.
FILTER = getattr(tarfile, "data_filter", None)


def extract_all(tar: tarfile.TarFile, folder: Path) -> None:
    for member in tar:
        extract(tar, member, folder)


def extract(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Raises tarfile.TarError for a path or a link that leads outside, and for devices."""
    if FILTER is not None:
        tar.extraction_filter = FILTER
    else:
        _check(member, folder)
    tar.extract(member, folder)


def _check(member: tarfile.TarInfo, folder: Path) -> None:
    # What was unpacked before it may be a link that it goes through, so the disk is asked.
    place = folder / member.name
    named = [place]
    if member.issym():
        named.append(place.parent / member.linkname)
    elif member.islnk():
        named.append(folder / member.linkname)
    root = folder.resolve()
    if not all(path.resolve().is_relative_to(root) for path in named):
        raise tarfile.ExtractError(f"{member.name} leads outside of the folder")
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        raise tarfile.ExtractError(f"{member.name} is neither a file nor a folder nor a link")
