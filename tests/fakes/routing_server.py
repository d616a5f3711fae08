"""A stand-in for several models behind one address: it answers as upstream's router does, or refuses as it does."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fakes.answering import answering

CONTEXT = 4_096
OURS = ("/cache", "/expert-")  # these routes take the model from the address, and load none
DONE = {
    "id": 1,
    "at_ms": 1000,
    "tokens_reused": 3,
    "tokens_evaluated": 1,
    "tokens_answered": 2,
    "prompt_ms": 4.0,
    "answer_ms": 5.0,
    "cache_source": "cold",
    "cache_miss": {"reason": "parted", "at": 3},
}
ANSWERS: dict[str, Any] = {
    "/cache": {"enabled": True, "warm": {}},
    "/cache/requests": {"requests": [DONE]},
    "/cache/slots": {"slots": [{"id": 0, "phase": "idle"}], "waiting": []},
    "/cache/plan": {"tokens": 7},
    "/cache/warm": {"tokens": 7, "evaluated": 7, "restored": 0, "on_disk": True, "bytes": 9, "ms": 1.0},
    "/expert-stats": {"enabled": True, "n_expert": 0},
    "/expert-tracking": {"enabled": True, "n_expert": 0},
    "/tokenize": {"tokens": [1, 2]},
}


class RoutingServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(
        self, models: Sequence[str], loaded: Sequence[str] = (), broken: Sequence[str] = (), port: int = 0
    ) -> None:
        """`broken` are the models that cannot be loaded."""
        super().__init__(("127.0.0.1", port), Handler)
        self.models = list(models)
        self.loaded = set(loaded)
        self.broken = set(broken)
        self.asked: list[tuple[str, str]] = []  # path and model of everything that was answered for a model
        self.addresses: list[str] = []  # as they came over the wire

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def routing_server(
    models: Sequence[str], loaded: Sequence[str] = (), broken: Sequence[str] = ()
) -> Iterator[RoutingServer]:
    with answering(RoutingServer(models, loaded, broken)) as server:
        yield server


class Handler(BaseHTTPRequestHandler):
    server: RoutingServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body: dict[str, Any] | None) -> None:
        self.server.addresses.append(self.path)
        path = urlsplit(self.path).path
        named = parse_qs(urlsplit(self.path).query).get("model", [""])[0]
        if path == "/health":
            self._json({"status": "ok"})
        elif path == "/v1/models":
            states = {name: "loaded" if name in self.server.loaded else "unloaded" for name in self.server.models}
            self._json({"data": [{"id": name, "status": {"value": state}} for name, state in states.items()]})
        elif path.startswith(OURS):
            self._answer_for(path, named, body, loads=False)
        else:
            self._answer_for(path, named if body is None else body.get("model", ""), body, loads=True)

    def _answer_for(self, path: str, model: str, body: dict[str, Any] | None, *, loads: bool) -> None:
        if not model:
            self._refuse(400, "model name is missing from the request")
        elif model not in self.server.models:
            self._refuse(400, f"model '{model}' not found")
        elif model not in self.server.loaded and not loads:
            self._refuse(400, "model is not loaded")
        elif model in self.server.broken:
            self._refuse(500, f"model name={model} failed to load")
        else:
            self.server.loaded.add(model)
            self.server.asked.append((path, model))
            if path == "/props":
                self._json({"default_generation_settings": {"n_ctx": CONTEXT}})
            elif path in ANSWERS:
                self._json(ANSWERS[path])
            else:
                self._complete(path, model, body or {})

    def _complete(self, path: str, model: str, body: dict[str, Any]) -> None:
        said = f"{model} says so."
        timings = {"cache_n": 3, "prompt_n": 1, "cache_source": "warm"}
        if not body.get("stream"):
            likely = [{"id": 1, "top_logprobs": [{"id": 1, "logprob": 0.0}]}]
            self._json({"content": said, "completion_probabilities": likely, "timings": timings})
            return
        events: list[dict[str, Any]]
        if "chat" in path:
            events = [{"choices": [{"index": 0, "delta": {"content": said}, "finish_reason": None}]}]
            events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "timings": timings})
        else:
            events = [{"content": said}, {"content": "", "stop": True, "stop_type": "eos", "timings": timings}]
        shared = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": model}
        lines = [f"data: {json.dumps({**shared, **event})}\n\n" for event in events]
        self._send(200, "text/event-stream", "".join([*lines, "data: [DONE]\n\n"]))

    def _refuse(self, status: int, message: str) -> None:
        self._json({"error": {"code": status, "message": message}}, status)

    def _json(self, content: object, status: int = 200) -> None:
        self._send(status, "application/json", json.dumps(content))

    def _send(self, status: int, kind: str, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
