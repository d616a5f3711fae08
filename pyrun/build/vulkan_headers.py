"""Fetches Vulkan headers that are new enough into deps/, where the system's are not.

They come from the package of a later Debian: the user's own mirror, apt's own client, a pinned hash. Headers are the
same on every architecture, so one package serves all. The loader and the driver stay the system's.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from pyrun import console
from pyrun.errors import UserError

VERSION = "1.4.309.0-1"
FILE = f"libvulkan-dev_{VERSION}_amd64.deb"
PATH = f"pool/main/v/vulkan-loader/{FILE}"
SHA256 = "8d329d465e16168afff58b1bd0dd6db46aac2cc3f56054a481b25a04e90b345a"
APT_HELPER = "/usr/lib/apt/apt-helper"
OTHERWISE = "or unpack the Vulkan SDK and set VULKAN_SDK to its folder"


def ensure_vulkan_headers(deps: Path, found: str) -> Path:
    """Gives the folder for Vulkan_INCLUDE_DIR, fetched on the first use. `found` is the version that is too old."""
    folder = deps / f"vulkan-headers-{VERSION}"
    include = folder / "include"
    if include.is_dir():
        return include
    console.say(f"the system's Vulkan headers ({found}) are too old for llama.cpp: fetching {VERSION} into {deps}")
    try:
        deps.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=deps, prefix=".vulkan-headers-") as name:
            temporary = Path(name)
            package = _download(temporary)
            _run(["dpkg-deb", "--extract", str(package), str(temporary / "all")], "unpack")
            kept = temporary / "kept"
            kept.mkdir()
            (temporary / "all" / "usr" / "include").rename(kept / "include")
            if folder.exists():  # a run that was cut off left it
                shutil.rmtree(folder)
            kept.rename(folder)
    except OSError as error:
        raise UserError(
            f"cannot write to {deps}: {error.strerror or error}", "free some disk space, or check its permissions"
        ) from error
    return include


def _download(folder: Path) -> Path:
    package = folder / FILE
    _run([APT_HELPER, "download-file", f"{_mirror()}/{PATH}", str(package), f"SHA256:{SHA256}"], "fetch")
    return package


def _mirror() -> str:
    """Finds the one that apt takes Debian's own packages from."""
    command = ["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages", "Component: main"]
    sites = _run(command, "find a mirror for").split()
    for site in sites:
        if site.rstrip("/").endswith("/debian"):
            return site.rstrip("/")
    raise UserError(
        f"apt names no mirror of Debian to fetch newer Vulkan headers from (it has {', '.join(sites) or 'none'})",
        f"add one to /etc/apt, {OTHERWISE}",
    )


def _run(command: list[str], what: str) -> str:
    result = subprocess.run(command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    if result.returncode == 0:
        return result.stdout
    said = (result.stderr or result.stdout).strip().splitlines()
    raise UserError(
        f"could not {what} the Vulkan headers {VERSION}:\n" + "\n".join(f"  {line}" for line in said[-6:]),
        f"check the network and run again, {OTHERWISE}",
    )
