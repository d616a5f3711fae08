"""Another site's page in the user's browser reads, changes and removes nothing. Programs notice nothing."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from cache_server import CacheServer, Serve, routes, starter, toy
from helpers import wait_until

pytestmark = pytest.mark.server

CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
EVIL, LOCAL = "https://evil.example", "http://localhost:5173"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CacheServer]:
    with starter(tmp_path_factory) as serve:
        yield serve(toy("dense"), "--parallel", "1", "--ctx-size", "2048", cache=tmp_path_factory.mktemp("kv") / "kv")


def test_no_route_answers_another_sites_page(server: CacheServer) -> None:
    for method, path in routes():
        for headers in (
            {"Origin": EVIL},
            {"Origin": "null"},
            {"Origin": EVIL, "Content-Type": "text/plain"},
            {"Origin": "http://localhost.evil.example:9090"},
            {"Origin": "http://127.0.0.1.evil.example"},
        ):
            answer = requests.request(method, server.url + path, data="{}", headers=headers, timeout=30)
            assert answer.status_code == 403, f"{method} {path} {headers}: {answer.status_code}"
            assert "Access-Control-Allow-Origin" not in answer.headers
            remedy = "http://localhost" if headers["Origin"] == "null" else "--cors-origins"
            assert remedy in answer.json()["error"]["message"]
        preflight = {"Origin": EVIL, "Access-Control-Request-Method": method}
        answer = requests.options(server.url + path, headers=preflight, timeout=30)
        assert answer.status_code == 403 and "Access-Control-Allow-Methods" not in answer.headers


def test_pages_load_nothing_without_an_origin(server: CacheServer) -> None:
    """Forms, and pictures that are none: a browser sends these without saying which page they are of."""
    for method, path in ("POST", "/cache/flush"), ("GET", "/cache/conversations"):
        headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
        answer = requests.request(method, server.url + path, data="{}", headers=headers, timeout=30)
        assert answer.status_code == 403, path
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert requests.get(f"{server.url}/cache", headers=link, timeout=30).status_code == 200, "following a link is fine"


def test_refusals_are_in_the_log_once(server: CacheServer) -> None:
    for _ in range(3):
        requests.get(f"{server.url}/cache", headers={"Origin": "https://logged.example"}, timeout=30)
    refusal = "refused: pages of 'https://logged.example'"
    wait_until(lambda: refusal in server.said(), 20, "it is logged, by a thread of its own")
    assert server.said().count(refusal) == 1


def test_name_that_is_not_ours_is_refused(server: CacheServer) -> None:
    """DNS rebinding: the page's own name resolves to this machine."""
    for method, path in routes():
        answer = requests.request(method, server.url + path, data="{}", headers={"Host": "evil.example"}, timeout=30)
        assert answer.status_code == 403 and "--allowed-host evil.example" in answer.text, f"{method} {path}"


def test_own_pages_and_programs_pass(server: CacheServer) -> None:
    port = server.port
    for headers in (
        {},
        {"Origin": f"http://127.0.0.1:{port}"},
        {"Origin": LOCAL},
        {"Origin": "http://[::1]:3000"},
        {"Host": f"localhost:{port}"},
        {"Host": f"192.168.1.5:{port}", "Origin": f"http://192.168.1.5:{port}"},
        {"Host": socket.gethostname()},
        {"Host": f"host.docker.internal:{port}"},
        {"Origin": "app://obsidian.md"},
        {"Origin": "tauri://localhost"},
        {"Origin": "vscode-webview://0b1c2d"},
        {"Sec-Fetch-Site": "same-origin", "Origin": f"http://127.0.0.1:{port}"},
    ):
        answer = requests.post(f"{server.url}/v1/chat/completions", json=CHAT, headers=headers, timeout=30)
        assert answer.status_code == 200, f"{headers}: {answer.text}"
        assert answer.headers.get("Access-Control-Allow-Origin") == headers.get("Origin"), "who may ask may read"
    # A page of a private network's server is another site for this one.
    headers = {"Origin": "http://192.168.1.6"}
    assert requests.get(f"{server.url}/cache", headers=headers, timeout=30).status_code == 403


def test_what_is_allowed_passes(serve: Serve, tmp_path: Path) -> None:
    flags = "--parallel", "1", "--ctx-size", "2048", "--allowed-host", "llama.lan,box.example"
    server = serve(
        toy("dense"), *flags, "--cors-origins", "https://app.example,https://other.example", cache=tmp_path / "kv"
    )
    for headers in (
        {"Host": "llama.lan"},
        {"Host": "Box.Example:80"},
        {"Origin": "https://app.example"},
        {"Origin": LOCAL},
    ):
        answer = requests.get(f"{server.url}/cache", headers=headers, timeout=30)
        assert answer.status_code == 200, headers
        assert answer.headers.get("Access-Control-Allow-Origin") == headers.get("Origin")
    for headers in {"Host": "evil.example"}, {"Origin": EVIL}:
        assert requests.get(f"{server.url}/cache", headers=headers, timeout=30).status_code == 403, headers


def test_without_the_cache_it_is_upstreams(serve: Serve) -> None:
    server = serve(toy("dense"), "--parallel", "1", "--ctx-size", "2048")
    answer = requests.get(f"{server.url}/props", headers={"Origin": EVIL, "Host": "evil.example"}, timeout=30)
    assert answer.status_code == 200 and answer.headers["Access-Control-Allow-Origin"] in ("*", EVIL)


def test_idle_connections_block_nobody(server: CacheServer) -> None:
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(200)]
    try:
        assert requests.get(f"{server.url}/cache", timeout=30).status_code == 200
        assert requests.post(f"{server.url}/v1/chat/completions", json=CHAT, timeout=30).status_code == 200
    finally:
        for connection in idle:
            connection.close()
