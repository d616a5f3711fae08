"""Takes the pictures of the dashboard that docs/dashboard.md shows: python scripts/picture_page.py [--out FOLDER]

The server and the browser are real; the model is the built-in one, and what it is asked is made up.
"""

from __future__ import annotations

import argparse
import base64
import sys
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from cache_server import launch, say, smollm2  # noqa: E402
from helpers import wait_until  # noqa: E402
from page_browser import Page, browser  # noqa: E402

from pyrun.home import Home  # noqa: E402
from toys.corpus import TEXT  # noqa: E402

SIZES = ((360, 1900), (1280, 1500), (2560, 1200))
SYSTEM = say("system", "You know the rivers of the world, and answer in one sentence. " * 12)
FLAGS = ("--parallel", "2", "--ctx-size", "8192", "--predict", "24", "--temp", "0")


def picture(page: Page, file: Path, width: int, height: int) -> None:
    page.resize(width, height)
    page.driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
    page.run("const talk = document.querySelector('#talk'); talk.scrollTop = talk.scrollHeight")
    page.run("window.scrollTo(0, 0)")
    shot = page.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
    file.write_bytes(base64.b64decode(shot["data"]))


def chat(page: Page, words: str) -> None:
    n = page.run("return document.querySelectorAll('.reuse').length")
    page.type("#words", words + "\n")
    page.until(lambda: page.run("return document.querySelectorAll('.reuse').length") > n, "the answer", 600)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        for first in (True, False):  # What the second one shows was reused over a restart.
            log = home / f"server-{first}.log"
            server = launch(Home(ROOT).server_binary("cpu"), smollm2(), *FLAGS, output=log, cache=home / "kv")
            server.wait_until_healthy()
            if first:
                for river in ("Nile", "Danube", "Amazon", "Rhine"):
                    server.chat([SYSTEM, say("user", f"Where does the {river} begin?")], max_tokens=16)
                server.stop()
        server.chat([SYSTEM, say("user", "Where does the Danube begin?")], max_tokens=16)
        server.chat([say("system", "Today is Monday. " + SYSTEM["content"]), say("user", "Hello")], max_tokens=8)
        with browser(home / "profile") as page:
            page.open(f"{server.url}/dashboard")
            page.until_text("#connection", "live")
            chat(page, "Where does the Danube begin?")
            chat(page, "And where does it end?")
            wait_until(lambda: "2 turns" in page.text("#conversation-list"), 60, "both turns are listed")
            long = {"prompt": " ".join(TEXT.split()[:4000]), "n_predict": 1}
            threading.Thread(target=server.request, args=("POST", "/completion", long), daemon=True).start()
            page.until_text("#lanes", "evaluating the prompt", 120)
            for scheme in ("light", "dark"):
                page.prefer(scheme)
                for width, height in SIZES:
                    picture(page, options.out / f"dashboard-{width}-{scheme}.png", width, height)
        server.stop()


if __name__ == "__main__":
    main()
