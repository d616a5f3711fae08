"""Makes upstream's web page with npm, before the server is compiled: it is the same for every backend.

Upstream would run npm within a step of ninja, which shows nothing of a step before that has ended. It takes minutes and
loads packages; so a person sees here what npm does, and where it fails, the server is built without the page.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pyrun import console
from pyrun.build.digest import folder_digest

LEAVE_OUT = "`llama-run build --no-web-ui` builds without it"
# npm waits for minutes where nobody answers, and tells nothing of what it loads, unless it is told otherwise.
NPM_SETTINGS = {
    "npm_config_audit": "false",
    "npm_config_fetch_retries": "1",
    "npm_config_fetch_retry_mintimeout": "2000",
    "npm_config_fund": "false",
    "npm_config_loglevel": "http",
    "npm_config_prefer_offline": "true",
    "npm_config_update_notifier": "false",
}
SILENCE_SECONDS = 180.0  # whoever loads packages and is silent for so long waits for somebody who does not answer
UNREACHABLE = re.compile(
    r"\b(ECONNREFUSED|ECONNRESET|EAI_AGAIN|ENETUNREACH|ENOTFOUND|EHOSTUNREACH|ETIMEDOUT|ERR_SOCKET_TIMEOUT)\b"
)


class NoPage(Exception):
    """Why there is no page, in words."""


def page_of(build: Path) -> Path:
    """The page that upstream's build embeds, where it is there."""
    return build / "tools" / "ui" / "dist"


def make_page(npm: str | None, sources: Path, folder: Path) -> Path | None:
    """Makes the page of these sources below `folder`, unless it is there. Where npm fails that is said."""
    page, made_of, log = folder / "dist", folder / "made-of", folder / "npm.log"
    digest = folder_digest(sources)
    if (page / "index.html").is_file() and made_of.is_file() and made_of.read_text(encoding="utf-8") == digest:
        return page
    if npm is None:
        console.say("no web page of upstream's: npm is not installed; the server shows a small page of ours")
        return None
    console.say(f"making upstream's web page with npm, which loads its packages; {LEAVE_OUT}")
    started = time.monotonic()
    made_of.unlink(missing_ok=True)  # before the page: one that is half removed is not taken for whole
    shutil.rmtree(folder, ignore_errors=True)
    work = folder / "work"
    shutil.copytree(sources, work)
    environment = {name: os.environ.get(name, value) for name, value in NPM_SETTINGS.items()}
    told = {"LLAMA_UI_OUT_DIR": str(page), "LLAMA_UI_VERSION": "b0", "LLAMA_BUILD_NUMBER": "0"}
    try:
        _run([npm, "ci"], work, log, environment, SILENCE_SECONDS)
        _run([npm, "run", "build"], work, log, {**environment, **told})
        if not (page / "index.html").is_file():
            raise NoPage("npm made no index.html")
    except NoPage as error:
        console.say(f"no web page: {error}; the server is built without it, and shows a small page of ours")
        console.show_hint(f"`llama-run build` tries it again; the full log is {log}")
        return None
    finally:
        with console.waiting("removing the packages"):  # they take 700 MB, and are in npm's own cache
            shutil.rmtree(work, ignore_errors=True)
    made_of.write_text(digest, encoding="utf-8")
    console.say(f"the web page is made, in {console.duration(time.monotonic() - started)}")
    return page


def place_page(page: Path | None, build: Path) -> None:
    """Puts the page where upstream's build embeds it from, or sees that there is none."""
    shutil.rmtree(page_of(build), ignore_errors=True)
    if page is not None:
        shutil.copytree(page, page_of(build))


def _run(
    command: Sequence[str], folder: Path, log: Path, environment: Mapping[str, str], silence: float = math.inf
) -> None:
    """Shows how long npm has been at it and its last line. It raises NoPage where npm fails or hangs."""
    name = " ".join(["npm", *command[1:]])
    with console.waiting(name) as tell, log.open("ab") as file:
        file.write(f"$ {name}\n".encode())
        file.flush()
        begin = file.tell()
        with subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,  # npm starts others, which have to end with it
        ) as process:
            try:
                _watch(process, file.write, tell, silence)
                code = process.wait()
            except BaseException:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                raise
    if code != 0:
        said = log.read_bytes()[begin:].decode("utf-8", "replace").splitlines()
        raise NoPage(f"{name} failed with exit code {code}: {_reason(said)}")


def _watch(
    process: subprocess.Popen[bytes], write: Callable[[bytes], int], tell: Callable[[str], None], silence: float
) -> None:
    assert process.stdout is not None
    started = heard = time.monotonic()
    line = ""
    while True:
        if select.select([process.stdout], [], [], 1.0)[0]:
            text = os.read(process.stdout.fileno(), 1 << 16)
            if not text:
                return
            write(text)
            heard = time.monotonic()
            lines = [part for part in text.decode("utf-8", "replace").splitlines() if part.strip()]
            line = console.printable(lines[-1].strip()) if lines else line
        elif time.monotonic() - heard > silence:
            raise NoPage(f"npm has said nothing for {console.duration(silence)}, and was ended")
        tell(f"{console.duration(time.monotonic() - started)}{': ' + line if line else ''}")


def _reason(said: list[str]) -> str:
    """npm tells much about a failure; what a person can do something about is in one word or the last line."""
    errors = [line for line in said if line.strip() and "A complete log of this run" not in line]
    unreachable = UNREACHABLE.search("\n".join(line for line in errors if line.lower().startswith("npm err")))
    if unreachable:
        return f"npm cannot reach its registry ({unreachable.group(1)})"
    return console.printable(errors[-1].strip()) if errors else "it said nothing"
