"""The page /dashboard in a real browser, on a real server: what it shows, what it changes, and whom it keeps out."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cache_server import CacheServer, Serve, routes, say, smollm2, toy
from page_browser import EVIL, Page, browser

from pyrun import console

pytestmark = pytest.mark.server

FLAGS = ("--parallel", "2", "--ctx-size", "4096", "--predict", "24")
SYSTEM = say("system", "You know the rivers of the world. " * 30)
HOSTILE = (
    "<script>window.pwned = 1</script><img src=x onerror='window.pwned = 1'>\u202egnp.\u2067exe\u200f</bdi></li>"
    + "W" * 10000
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def again(serve: Serve, server: CacheServer, model: Path, cache: Path) -> CacheServer:
    """Another server at the same address."""
    server.stop()
    made = serve(model, *FLAGS, "--port", str(server.port), cache=cache, ready=False)
    made.port = server.port
    made.wait_until_healthy()
    return made


def chat(page: Page, text: str) -> str:
    """Says something in the page's chat, and gives what stands under the answer."""
    n = page.run("return document.querySelectorAll('.reuse').length")
    page.type("#words", text + "\n")
    page.until(lambda: page.run("return document.querySelectorAll('.reuse').length") > n, "the answer", 120)
    return str(page.run("return [...document.querySelectorAll('.reuse')].at(-1).textContent"))


@pytest.mark.parametrize("name", ["smollm2", "hybrid-moe"])
def test_what_is_said_and_done_is_seen(page: Page, serve: Serve, tmp_path: Path, name: str) -> None:
    model, cache = smollm2() if name == "smollm2" else toy(name), tmp_path / "kv"
    server = serve(model, *FLAGS, cache=cache)
    page.asked(), page.errors()
    page.open(f"{server.url}/dashboard")
    page.until_text("#connection", "live")
    page.until_text("#request-list", "No request has ended")

    assert "0 of" in chat(page, "Which river is the longest?")
    page.until_text("#request-list", "tokens reused")
    page.until_text("#conversation-list", "1 turn")
    saved = page.text("#saved-facts")

    server = again(serve, server, model, cache)
    page.until_text("#connection", "live, the server was restarted", 60)
    assert server.get("/cache/saved")["ever"]["requests"] == 1, saved
    under = chat(page, "And the next one?")
    assert not under.startswith("0 of") and ("from disk" in under or "from RAM" in under), "what was before the restart"
    page.until_text("#saved-facts", "in 2 requests")
    page.until_text("#request-list", "from ")

    page.until_text("#conversation-list", "turn")
    page.click("#conversation-list button")
    assert "frees" in page.text("#remove-frees")
    removed = page.text("#remove-what")
    page.click("#remove-yes")
    page.until(lambda: removed not in [one["hash"] for one in server.conversations()], "it is removed")

    if name == "hybrid-moe":
        page.click("#track")
        page.until_text("#experts-text", "Counting")
        server.chat([SYSTEM, say("user", "Hello")])
        page.until(lambda: page.run("return document.querySelectorAll('#heat path').length") > 0, "experts are drawn")
    assert page.errors() == []
    assert page.asked() == {server.url}, "and nobody else"


def test_a_miss_shows_its_words_and_hostile_text_is_text(page: Page, serve: Serve, tmp_path: Path) -> None:
    server = serve(toy("dense"), "--parallel", "1", "--ctx-size", "2048", cache=tmp_path / "kv")
    for text in ("Wide", HOSTILE[:160]):
        server.chat([say("system", f"Today is a day. {text} " + SYSTEM["content"]), say("user", "Hello")], max_tokens=1)
    page.open(f"{server.url}/dashboard", width=360)
    page.until_text("#request-list", "it departs from what is known")
    assert "<script>" in page.text("#request-list .words")
    page.run("document.querySelector('#words').value = arguments[0]", HOSTILE)
    page.type("#words", "\n")
    page.until_text("#talk .failed", "exceeds the available context size")
    assert page.text("#talk .message") == HOSTILE
    for width in (360, 2560):
        page.resize(width, 900)
        assert page.run("return document.documentElement.scrollWidth") <= width, f"nothing sticks out at {width}"
    assert page.run("return window.pwned ?? null") is None
    assert page.run("return document.querySelectorAll('main img, main script').length") == 0
    (refused,) = page.errors()
    assert "status of 400" in refused, "for the prompt that was too long"


def test_numbers_are_written_as_the_command_line_writes_them(page: Page, serve: Serve, tmp_path: Path) -> None:
    server = serve(toy("dense"), "--parallel", "1", "--ctx-size", "512", cache=tmp_path / "kv")
    page.open(f"{server.url}/dashboard")
    sizes = [0, 1, 812, 999, 1000, 4096, 999949, 999950, 48652288, 999949999, 5300000000, 999994999999, 1e12, 7e15]
    seconds = [0, 0.4, 7, 59, 59.6, 75, 3599, 3700, 86399, 172799, 200000, 1e7]
    shown = page.run_async(
        "const {size, duration} = await import('/dashboard.js');return [given[0].map(size), given[1].map(duration)]",
        sizes,
        seconds,
    )
    assert shown == [[console.size(n) for n in sizes], [console.duration(n) for n in seconds]]


def test_the_key_is_asked_for_once(page: Page, serve: Serve, tmp_path: Path) -> None:
    server = serve(toy("dense"), "--parallel", "1", "--ctx-size", "512", cache=tmp_path / "kv", api_key="secret")
    page.open(f"{server.url}/dashboard")
    page.until(lambda: page.run("return document.querySelector('#key-dialog').open"), "the page asks for the key")
    page.type("#key", "wrong\n")
    page.until_text("#key-text", "not the server's key")
    page.type("#key", "secret\n")
    page.until_text("#connection", "live")
    page.open(f"{server.url}/dashboard")
    page.until_text("#connection", "live")
    assert not page.run("return document.querySelector('#key-dialog').open")
    page.errors()  # the browser notes each 401


class Elsewhere(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>evil</title>")

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_another_sites_page_reads_and_changes_nothing(page: Page, serve: Serve, tmp_path: Path) -> None:
    server = serve(toy("dense"), "--parallel", "1", "--ctx-size", "2048", cache=tmp_path / "kv")
    server.chat([SYSTEM, say("user", "Hello")])
    before = server.flush()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        page.open(f"http://{EVIL}:{site.server_port}/")
        assert page.run("return document.title") == "evil"
        read = page.run_async(
            """
            const [url, routes] = given;
            const read = [];
            await Promise.all(routes.flatMap(([method, path]) => ["cors", "no-cors"].map(async (mode) => {
              if (mode === "no-cors" && method === "DELETE") return;
              const signal = AbortSignal.timeout(20000);
              try {
                const body = method === "POST" ? "{}" : undefined;
                const answer = await fetch(url + path, {method, mode, body, signal, credentials: "include"});
                if (answer.type !== "opaque") read.push(`${method} ${path}: ${answer.status} ${answer.type}`);
              } catch { /* as it should be */ }
            })));
            return read;
            """,
            server.url,
            routes(),
        )
        site.shutdown()
    assert read == []
    after = server.flush()
    assert after["state"]["conversations"] == before["state"]["conversations"] == 1
    assert after["requests"] == before["requests"], "nobody's prompt was evaluated"


def test_a_name_that_was_made_to_mean_this_machine_is_refused(page: Page, serve: Serve, tmp_path: Path) -> None:
    server = serve(toy("dense"), "--parallel", "1", "--ctx-size", "512", cache=tmp_path / "kv")
    page.open(f"http://{EVIL}:{server.port}/dashboard")
    assert f"--allowed-host {EVIL}" in page.text("body")
    server.stop()
    server = serve(toy("dense"), "--parallel", "1", "--ctx-size", "512", "--allowed-host", EVIL, cache=tmp_path / "kv")
    page.open(f"http://{EVIL}:{server.port}/dashboard")
    page.until_text("#connection", "live")
