"""The page /dashboard in a real browser, on a real server: what it shows, what it changes, and whom it keeps out."""

from __future__ import annotations

import http.server
import random
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from cache_server import CacheServer, Serve, routes, say, smollm2, toy
from helpers import wait_until
from page_browser import EVIL, Page, browser

from pyrun import console
from pyrun.cache.remote import server_stats

pytestmark = pytest.mark.server

FLAGS = ("--parallel", "2", "--ctx-size", "4096", "--predict", "24")
SYSTEM = say("system", "You know the rivers of the world. " * 30)
HOSTILE = (
    "<script>window.pwned = 1</script><img src=x onerror='window.pwned = 1'>\u202egnp.\u2067exe\u200f</bdi></li>"
    + "W" * 10000
)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def page(chromium: Page) -> Page:
    """The page of the test before is gone, with what it has said: it would go on asking for its server."""
    chromium.open("about:blank")
    chromium.asked(), chromium.errors()
    return chromium


def again(serve: Serve, server: CacheServer, model: Path, cache: Path, *flags: str) -> CacheServer:
    """Another server at the same address."""
    server.stop()
    made = serve(model, *FLAGS, *flags, "--port", str(server.port), cache=cache, ready=False)
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
    page.click("#conversation-list button[aria-label^='Remove ']")
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


def test_a_conversation_is_kept_and_read_into_ram_from_the_page(page: Page, serve: Serve, tmp_path: Path) -> None:
    server = serve(toy("hybrid-mamba"), *FLAGS, "--cache-ssd-read-ahead", "off", cache=tmp_path / "kv")
    server.chat([SYSTEM, say("user", "Which river is the longest?")])
    server = again(serve, server, toy("hybrid-mamba"), tmp_path / "kv", "--cache-ssd-read-ahead", "off")
    page.open(f"{server.url}/dashboard")
    page.until_text("#conversation-list", "cold")
    page.click("#conversation-list button[aria-label^='Warm ']")
    page.until(lambda: server.conversations()[0]["tier"] != "cold", "it is in RAM")
    page.until_text("#conversation-list", "hot")
    page.run(
        "const choice = document.querySelector('#conversation-list select');"
        "choice.value = '24h'; choice.dispatchEvent(new Event('change'))"
    )
    page.until(lambda: server.conversations()[0]["ttl"] == "24h", "it is kept")
    page.until_text("#conversation-list", "protected")
    assert page.errors() == []


def test_a_request_shows_its_conversation_and_its_plan_against_the_fact(
    page: Page, serve: Serve, tmp_path: Path
) -> None:
    server = serve(toy("dense"), *FLAGS, cache=tmp_path / "kv")
    for words in ("Which river is the longest?", "Which river is the shortest?"):
        server.chat([SYSTEM, say("user", words)])
    page.open(f"{server.url}/dashboard")
    page.until_text("#request-list .request", "Which river is the shortest?")
    assert ", planned " in page.text("#request-list .request") and "first token after " in page.text("#request-list")


MINUTES = 60


def an_hour(serve: Serve, server: CacheServer, cache: Path) -> CacheServer:
    """What happens in an hour, without the time between: turns of several chats, users, removals, a stop."""
    draw = random.Random(21)
    talks = [[SYSTEM, say("user", f"Question {n} about rivers?")] for n in range(6)]
    for minute in range(MINUTES):
        talk = draw.choice(talks)
        kind = draw.choice(["turn"] * 6 + ["other user", "two answers", "remove", "leave"])
        if kind == "turn":
            answer = server.chat(talk, max_tokens=draw.randrange(1, 12))
            talk += [say("assistant", answer.text), say("user", f"And at minute {minute}?")]
        elif kind == "other user":
            server.chat(talk[:2], max_tokens=2, llama_user_id="ann")
        elif kind == "two answers":
            server.post("/v1/chat/completions", {"messages": talk[:2], "max_tokens": 2, "n": 2})
        elif kind == "remove" and server.conversations():
            oldest = server.conversations()[-1]["hash"]
            assert server.request("DELETE", f"/cache/conversations/{oldest}").status_code == 200
        elif kind == "leave":
            body = {"prompt": f"minute {minute} ", "n_predict": 2000, "ignore_eos": True, "stream": True}
            with requests.post(f"{server.url}/completion", json=body, stream=True, timeout=60) as left:
                next(left.iter_lines())
        if minute == MINUTES // 2:
            server = again(serve, server, toy("dense"), cache, "--metrics")
    return server


def test_after_an_hour_in_fast_motion_all_views_have_the_same_numbers(page: Page, serve: Serve, tmp_path: Path) -> None:
    cache = tmp_path / "kv"
    server = an_hour(serve, serve(toy("dense"), *FLAGS, "--metrics", cache=cache), cache)
    wait_until(lambda: all(slot["phase"] == "idle" for slot in server.get("/cache/slots")["slots"]), 30, "quiet")
    told, saved, stats = server.flush(), server.get("/cache/saved"), server_stats(server.url)

    metrics = dict(re.findall(r"^llamacpp:cache_(\w+) (\S+)$", server.request("GET", "/metrics").text, re.MULTILINE))
    shown = {**told["state"], **{f"{name}_total": value for name, value in told["counters"].items()}}
    moving = {"lookups_total", "ram_bytes", "index_bytes"}
    assert {name: float(metrics[name]) for name in shown if name not in moving} == {
        name: value for name, value in shown.items() if name not in moving
    }
    now = told["requests"]
    for name, metric in (("finished", "requests"), ("tokens_reused",) * 2, ("tokens_evaluated",) * 2):
        assert float(metrics[f"{metric}_total"]) == now[name]

    (model,) = stats.stored.models
    state = told["state"]
    assert (model.conversations, model.users, model.turns, model.pages, model.hits, model.restores) == (
        *(state[name] for name in ("conversations", "users", "checkpoints", "pages", "hits")),
        told["counters"]["loads"],
    )
    assert stats.bytes == state["disk_bytes"]

    page.open(f"{server.url}/dashboard", width=2560)
    ever = saved["ever"]
    page.until_text("#saved-facts", f"in {ever['requests']} requests")
    facts = page.text("#saved-facts")
    for counts, n in ((ever, ever["requests"]), (now, now["finished"])):
        both = counts["tokens_reused"] + counts["tokens_evaluated"]
        assert f"{counts['tokens_reused']:,} of {both:,} tokens" in facts and f"in {n} requests" in facts
    assert f"{console.size(state['disk_bytes'])} of {console.size(state['disk_limit'])}" in page.text("#disk-bars")
    assert f"{console.size(told['written']['today'])}" in page.text("#disk-facts")
    listed = page.run("return document.querySelectorAll('.conversation').length")
    anns = server.get("/cache/conversations?user_id=ann")["conversations"]
    assert listed == len(server.conversations()) == state["conversations"] - len(anns), "ann's are not for others"
    own = sum(one["bytes_own"] for one in server.conversations())
    assert own <= server.get("/cache/disk")["conversations"]


def test_every_control_has_a_name_and_the_keyboard_reaches_it_in_order(
    page: Page, serve: Serve, tmp_path: Path
) -> None:
    server = serve(toy("hybrid-moe"), *FLAGS, cache=tmp_path / "kv")
    server.chat([SYSTEM, say("user", "Which river is the longest?")])
    page.open(f"{server.url}/dashboard")
    page.until_text("#conversation-list", "1 turn")
    tree = page.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    seen = [node for node in tree if not node.get("ignored")]
    roles = {str(node["role"]["value"]) for node in seen}
    assert {"banner", "navigation", "main", "region", "status", "list", "heading"} <= roles
    for node in seen:
        role = node["role"]["value"]
        if role in (
            "button",
            "link",
            "textbox",
            "searchbox",
            "combobox",
            "image",
            "img",
            "region",
            "navigation",
            "log",
        ):
            assert node.get("name", {}).get("value"), f"a {role} without a name"
    titles = [node["name"]["value"] for node in seen if node["role"]["value"] == "heading"]
    assert titles[:3] == ["llama-run", "Now", "Saved"]

    # It draws some of its parts anew every few seconds, and what had the focus is gone then.
    page.run("for (let timer = setTimeout(() => 0); timer > 0; timer--) clearInterval(timer)")
    reached: list[str] = []
    for _ in range(60):
        page.press_tab()
        where = page.run(
            "const at = document.activeElement;"
            "if (at === document.body) return null;"
            "const all = [...document.querySelectorAll('*')];"
            "const drawn = getComputedStyle(at).outlineStyle !== 'none';"
            "return [String(all.indexOf(at)).padStart(6, '0'), drawn, at.id || at.textContent.slice(0, 20)]"
        )
        if where is None:
            break
        assert where[1], f"{where[2]} does not show that it has the focus"
        reached.append(where[0])
    assert len(reached) > 15 and reached == sorted(reached), "from the top to the bottom"


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
