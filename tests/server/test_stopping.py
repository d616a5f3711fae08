"""SIGTERM while clients wait: they are told, what was evaluated is kept, and the process ends."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import requests
from backend import PATIENCE
from cache_server import CacheServer, Serve, smollm2, toy
from helpers import wait_until

from toys.corpus import TEXT

pytestmark = pytest.mark.server

# Of the promise, 5 s; starting and ending a process on a busy machine is the rest.
SOON = 15.0


def ends_soon(server: CacheServer) -> None:
    began = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 0, server.said()
    took = time.monotonic() - began
    assert took < SOON * PATIENCE, f"{took:.1f} s:\n{server.said()[-3000:]}"


def n_decoded(server: CacheServer) -> int:
    return sum(int(slot["next_token"][0]["n_decoded"]) for slot in server.get("/slots") if slot["is_processing"])


@pytest.mark.parametrize("stream", [False, True])
def test_waiting_clients_are_told_and_the_prompt_is_kept(serve: Serve, kv: Path, stream: bool) -> None:
    model = smollm2()
    flags = "--parallel", "1", "--ctx-size", "8192", "-ub", "64", "--cache-ssd-page-size", "32"
    server = serve(model, *flags, cache=kv)
    tokens = (server.tokens(TEXT) * 4)[:1900]  # one batch of llama.cpp's
    # On a slow machine the prompt is stopped half-way, on any the answer.
    body = {"prompt": tokens, "n_predict": 4000, "ignore_eos": True, "stream": stream}
    speed = float(server.complete(tokens[700:800], n_predict=1).timings["prompt_per_second"])
    answers: list[tuple[int, str]] = []

    def ask() -> None:
        answer = requests.post(f"{server.url}/completion", json=body, timeout=120)
        answers.append((answer.status_code, answer.text))

    clients = [threading.Thread(target=ask) for _ in range(3)]  # one is evaluated, the others wait for the slot
    for client in clients:
        client.start()
    wait_until(lambda: any(slot["is_processing"] for slot in server.get("/slots")), 30, "a prompt is evaluated")
    time.sleep(len(tokens) / speed / 3)  # a batch cannot be looked into: what it has done follows from its speed
    ends_soon(server)
    for client in clients:
        client.join(10)
    assert len(answers) == 3
    for status, text in answers:
        assert status == 503 or (stream and "the server is stopping" in text), (status, text[:300])

    server = serve(model, *flags, cache=kv)
    again = server.complete(tokens[:128], n_predict=1)
    assert again.reused >= 64, f"{again.timings}: seconds of a prompt were evaluated and lost"
    cold = serve(model, *flags).complete(tokens[:128], n_predict=1, cache_prompt=False)
    assert again.apart(cold) < 0.3  # products of quantised weights round differently in batches of other sizes


def test_answer_in_the_making_is_kept(serve: Serve, kv: Path) -> None:
    server = serve(toy("hybrid-moe"), "--parallel", "2", "--ctx-size", "16384", cache=kv)
    prompt = server.tokens(TEXT)[:300]
    told: list[int] = []

    def ask() -> None:
        body = {"prompt": prompt, "n_predict": 7000, "ignore_eos": True}
        told.append(requests.post(f"{server.url}/completion", json=body, timeout=120).status_code)

    client = threading.Thread(target=ask)
    client.start()
    wait_until(lambda: n_decoded(server) > 0, 30 * PATIENCE, "an answer has begun")
    ends_soon(server)
    client.join(10)
    assert told == [503]
    server = serve(toy("hybrid-moe"), "--parallel", "2", "--ctx-size", "16384", cache=kv)
    again = server.complete(prompt, n_predict=1)
    assert again.reused >= len(prompt) - 4 and again.source == "cold"


@pytest.mark.parametrize("kind", ["hybrid-moe", "hybrid-mamba"])
def test_signal_while_a_batch_is_evaluated_ends_the_process(serve: Serve, kv: Path, kind: str) -> None:
    """The signal's handler may run on the thread that evaluates, which holds the queue's lock then."""
    for attempt in range(3):
        server = serve(
            toy(kind), "--parallel", "1", "--ctx-size", "2048", "-b", "16", "-ub", "16", "--kv-unified", cache=kv
        )
        server.complete(server.tokens(TEXT)[attempt : attempt + 300], n_predict=24, ignore_eos=True)
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        body = {"prompt": server.tokens(TEXT)[400:421], "n_predict": 24, "stream": True, "ignore_eos": True}
        connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        parts = 0
        while parts < 4:
            parts += answer.readline().startswith(b"data:")
        connection.close()
        ends_soon(server)


def test_client_that_does_not_read_keeps_nobody(serve: Serve, kv: Path) -> None:
    server = serve(toy("dense"), "--parallel", "1", "--ctx-size", "32768", cache=kv)
    body = json.dumps({"prompt": "Hello", "n_predict": 30000, "ignore_eos": True, "stream": True, "n_probs": 50})
    with socket.create_connection(("127.0.0.1", server.port)) as stalled:
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        head = f"POST /completion HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
        stalled.sendall((head + body).encode())
        time.sleep(4 * PATIENCE)
        ends_soon(server)


def test_body_without_bottom_ends_nobody(serve: Serve, kv: Path) -> None:
    server = serve(toy("dense"), "--parallel", "1", "--ctx-size", "2048", cache=kv)
    deep = "[" * 100_000 + "]" * 100_000
    messages = '"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1'
    for path, field in (("/v1/messages", '"metadata": {"user_id": %s}'), ("/v1/chat/completions", '"tools": %s')):
        answer = requests.post(server.url + path, data=f"{{{messages}, {field % deep}}}", timeout=60)
        assert answer.status_code == 400 and "nested" in answer.text, answer.text
    assert server.process.poll() is None and server.is_healthy()


def test_what_a_client_did_wrong_is_not_called_the_servers_fault(serve: Serve, kv: Path) -> None:
    server = serve(toy("dense"), "--parallel", "1", "--ctx-size", "2048", "--jinja", cache=kv)
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    source = {"type": "base64", "media_type": "image/png", "data": "aGk="}
    bodies: list[tuple[str, dict[str, Any], str]] = [
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [picture]}]},
            "image input is not supported",
        ),
        ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "image", "source": source}]}]}, "image"),
        ("/v1/messages", {"max_tokens": 5}, "'messages' is required"),
        ("/v1/chat/completions", {"max_tokens": 5}, "'messages' is required"),
        ("/v1/responses", {"max_output_tokens": 5}, "'input' is required"),
    ]
    for path, body, message in bodies:
        answer = server.request("POST", path, body)
        told = answer.json()
        assert answer.status_code == 400 and message in told["error"]["message"], f"{path}: {answer.text}"
        assert (told.get("type") == "error") == (path == "/v1/messages"), "Anthropic's clients know errors by this"
        assert told["error"]["type"] == "invalid_request_error"


def test_invalid_json_is_the_clients_fault(serve: Serve, kv: Path) -> None:
    server = serve(toy("dense"), "--parallel", "1", "--ctx-size", "2048", cache=kv)
    for path in ("/completion", "/v1/chat/completions", "/v1/messages", "/v1/responses", "/tokenize"):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        connection.request("POST", path, body='{"prompt": ', headers={"Content-Type": "application/json"})
        answer = connection.getresponse()
        told: dict[str, Any] = json.loads(answer.read())
        assert (path, answer.status, told["error"]["code"]) == (path, 400, 400)
