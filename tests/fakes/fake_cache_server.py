"""A stand-in for llama-server with the cache, as far as tests/fault/interleave.py looks: it answers by a hash.

It keeps what users asked in memory, and forgets it when it ends. FAKE_FAULT plants one fault, named as in `FAULTS`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import threading
import types
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

FAULTS = ("wrong", "shared", "kept", "dies", "refuses")
FAULT = os.environ.get("FAKE_FAULT")
CACHED = False  # only the server that is tried has faults

mu = threading.Lock()
known: dict[str, list[list[int]]] = {}
listed: set[str] = set()  # users with a conversation


def has(fault: str) -> bool:
    return CACHED and fault == FAULT


def predict(tokens: list[int], wrong: bool) -> list[tuple[int, float]]:
    rng = random.Random(repr(tokens[1:] if wrong else tokens))
    return [(token, -0.5 - n) for n, token in enumerate(rng.sample(range(32, 127), 10))]


def common(one: list[int], other: list[int]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def answer(prompt: list[int], count: int, user: str) -> dict[str, Any]:
    with mu:
        mine = [seen for name, all_seen in known.items() if name == user or has("shared") for seen in all_seen]
        reused = min(max((common(prompt, seen) for seen in mine), default=0), len(prompt) - 1) if CACHED else 0
    wrong = has("wrong") and reused > 30
    if has("dies") and reused > 30:
        os.kill(os.getpid(), signal.SIGKILL)
    tokens = list(prompt)
    probabilities = []
    for _ in range(count):
        top = predict(tokens, wrong)
        tokens.append(top[0][0])
        entries = [{"id": token, "logprob": p} for token, p in top]
        probabilities.append({"id": top[0][0], "top_logprobs": entries})
    with mu:
        known.setdefault(user, []).append(tokens)
        listed.add(user)
    new = tokens[len(prompt) :]
    timings = {"cache_n": reused, "prompt_n": len(prompt) - reused, "cache_source": "slot" if reused else "none"}
    return {
        "content": bytes(new).decode(),
        "tokens": new,
        "completion_probabilities": probabilities,
        "timings": timings,
    }


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass

    def reply(self, body: object, status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def user(self) -> str:
        return parse_qs(urlsplit(self.path).query).get("user_id", [""])[0]

    def do_GET(self) -> None:
        routes: dict[str, object] = {
            "/health": {"status": "ok"},
            "/props": {"is_sleeping": True},
            "/slots": [{"is_processing": False}],
            "/cache": {"enabled": True, "damaged": {}},
            "/cache/conversations": {"conversations": [{"hash": "0" * 16}] if self.user() in listed else []},
        }
        self.reply(routes[urlsplit(self.path).path])

    def do_DELETE(self) -> None:
        parts = urlsplit(self.path).path.split("/")
        seen = known.get(parts[3] if parts[2] == "users" else self.user(), [])
        if parts[2] == "conversations":
            listed.discard(self.user())
        if not has("kept"):
            seen.clear()
        self.reply({"bytes_freed": 0})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        path = urlsplit(self.path).path
        if path == "/apply-template":
            self.reply({"prompt": "".join(f"{m['role']}: {m['content']}\n" for m in body["messages"])})
        elif path == "/tokenize":
            self.reply({"tokens": list(body["content"].encode())})
        elif path == "/completion":
            self.complete(body)
        elif path == "/v1/chat/completions":
            text = "".join(f"{m['role']}: {m['content']}\n" for m in body["messages"])
            told = answer(list(text.encode()), body["max_tokens"], body.get("llama_user_id", ""))
            choice = {
                "message": {"content": told["content"]},
                "logprobs": {"content": told["completion_probabilities"]},
            }
            self.reply({"choices": [choice] * body.get("n", 1), "timings": told["timings"]})
        else:
            self.reply({})

    def complete(self, body: dict[str, Any]) -> None:
        if has("refuses") and len(known) > 1:
            self.reply({"error": "planted"}, 500)
            return
        told = answer(body["prompt"], body["n_predict"], body.get("llama_user_id", ""))
        if not body.get("stream"):
            self.reply([told] * body["n_cmpl"] if body.get("n_cmpl", 1) > 1 else told)
            return
        self.send_response(200)
        self.end_headers()
        for token, p in zip(told["tokens"], told["completion_probabilities"], strict=True):
            self.event({"content": chr(token), "tokens": [token], "completion_probabilities": [p]})
        self.event({"content": "", "tokens": [], "timings": told["timings"]})

    def event(self, part: object) -> None:
        self.wfile.write(b"data: " + json.dumps(part).encode() + b"\n\n")


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Clients hang up."""


def main() -> None:
    global CACHED
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--port", type=int)
    parser.add_argument("--cache-ssd")
    options, _ = parser.parse_known_args()
    CACHED = options.cache_ssd is not None

    def leave(_: int, __: types.FrameType | None) -> None:
        os._exit(0)

    signal.signal(signal.SIGTERM, leave)
    Server(("127.0.0.1", options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
