"""Tries upstream's web page with our tools in a real Chromium: a model stand-in calls one, the page makes the call.

    python scripts/try_page.py [--page FOLDER]

The server and the page have to be built (`llama-run build`, with npm), and chromium and chromedriver be installed. The
server, the tool server, the page and the browser are the real ones; answers come from a script in front of the server.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from cache_server import launch, toy  # noqa: E402
from fakes.dialects import Reply  # noqa: E402
from fakes.model_server import Handler, ModelServer  # noqa: E402
from helpers import free_port, wait_until  # noqa: E402

from pyrun.home import Home  # noqa: E402
from pyrun.tools.mcp_config import write_config  # noqa: E402

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the name that WebDriver gives to references
SECONDS = 120
SECRET = "Rosinante"


def script(body: dict[str, Any]) -> Reply:
    last = body["messages"][-1]
    if last["role"] == "tool":
        return Reply([f"The file says: {last['content']}"])
    return Reply(calls=[("call1", "llama-run_read_file", {"path": "horse.txt"})])


class Front(Handler):
    """Answers chats itself; everything else is the server's business."""

    behind = ""

    def do_GET(self) -> None:
        self._pass_on(b"")

    def do_POST(self) -> None:
        if self.path.endswith("/chat/completions"):
            super().do_POST()
        else:
            self._pass_on(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def _pass_on(self, body: bytes) -> None:
        headers = {name: value for name, value in self.headers.items() if name not in ("Host", "Content-Length")}
        answer = requests.request(self.command, self.behind + self.path, data=body, headers=headers, timeout=SECONDS)
        self.send_response(answer.status_code)
        for name in ("Content-Type", "Access-Control-Allow-Origin"):
            if name in answer.headers:
                self.send_header(name, answer.headers[name])
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)


class Browser:
    """Chromium through WebDriver, which is JSON over HTTP."""

    def __init__(self, url: str) -> None:
        arguments = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        wanted = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": {"args": arguments}}}}
        self._url = url
        self._url = f"{url}/session/{self._ask('POST', '/session', wanted)['sessionId']}"

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        answer = requests.request(method, self._url + path, json=body, timeout=SECONDS)
        if not answer.ok:
            raise RuntimeError(answer.text[:500])
        return answer.json()["value"]

    def open(self, url: str) -> None:
        self._ask("POST", "/url", {"url": url})

    def run(self, code: str, *arguments: object) -> Any:
        return self._ask("POST", "/execute/sync", {"script": code, "args": list(arguments)})

    @property
    def text(self) -> str:
        return str(self.run("return document.body.innerText"))

    def type(self, css: str, text: str) -> None:
        found = self._ask("POST", "/element", {"using": "css selector", "value": css})[ELEMENT]
        self._ask("POST", f"/element/{found}/click", {})
        self._ask("POST", f"/element/{found}/value", {"text": text})

    def click(self, label: str) -> None:
        find = "return [...document.querySelectorAll('button')].find(b => b.innerText.trim() == arguments[0])"
        wait_until(lambda: self.run(find, label) is not None, SECONDS, f"{label!r} is shown:\n{self.text}")
        self.run(f"{find}.click()", label)

    def close(self) -> None:
        self._ask("DELETE", "")


@contextmanager
def driver() -> Iterator[str]:
    port = free_port()
    process = subprocess.Popen(
        [shutil.which("chromedriver") or "chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL
    )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: _answers(f"{url}/status"), 60, "chromedriver answers")
        yield url
    finally:
        process.terminate()
        process.wait()


def _answers(url: str) -> bool:
    try:
        return requests.get(url, timeout=5).ok
    except requests.RequestException:
        return False


@contextmanager
def served(page: Path, folder: Path) -> Iterator[ModelServer]:
    """The real server with the page and the tools, and the front before it."""
    work, config = folder / "work", folder / "memory" / "mcp-servers.json"
    work.mkdir()
    (work / "horse.txt").write_text(SECRET)
    (folder / "llama.cpp").mkdir()
    shutil.copy(ROOT / "llama.cpp" / "upstream.toml", folder / "llama.cpp")
    os.environ["LLAMA_RUN_HOME"] = str(folder)
    write_config(config, work)
    flags = ("--ctx-size", "2048", "--mcp-servers-config", str(config), "--webui", "--path", str(page))
    server = launch(Home(ROOT).server_binary("cpu"), toy("dense"), *flags, output=folder / "server.log", cache=None)
    Front.behind = server.url
    front = ModelServer(script)
    front.RequestHandlerClass = Front
    threading.Thread(target=front.serve_forever, daemon=True).start()
    try:
        server.wait_until_healthy()
        yield front
    finally:
        front.shutdown()
        server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    built = Home(ROOT).build("cpu") / "tools" / "ui" / "dist"
    parser.add_argument("--page", type=Path, default=built, help="the built page (default: of the last build)")
    page: Path = parser.parse_args().page
    if not (page / "index.html").is_file():
        parser.error(f"there is no page in {page}; build it: llama-run build")
    with tempfile.TemporaryDirectory() as folder, served(page, Path(folder)) as front, driver() as url:
        browser = Browser(url)
        try:
            browser.open(front.url)
            field = "textarea, [contenteditable=true]"
            wait_until(
                lambda: bool(browser.run("return document.querySelector(arguments[0])", field)), SECONDS, "a page"
            )
            browser.type(field, "What is the horse called?\n")
            browser.click("Allow once")
            wait_until(lambda: SECRET in browser.text, SECONDS, "the page shows the answer")
        finally:
            browser.close()
    offered = {tool["function"]["name"] for tool in front.requests[0]["tools"]}
    assert "llama-run_read_file" in offered, offered
    results = [message for message in front.requests[-1]["messages"] if message["role"] == "tool"]
    assert SECRET in results[-1]["content"], results
    print(f"the page offered {len(offered)} tools, asked, made the call and showed what came of it")


if __name__ == "__main__":
    main()
