"""A stand-in for every service that models are at: its streams, by a script, and its troubles.

How each of them speaks is in dialects.py. The bodies of all requests are kept as they came over the wire. It can stand
in for the model of a real server alone: everything but requests for an answer is passed on to that one.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import requests
from fakes.answering import answering
from fakes.dialects import ANTHROPIC, LLAMA_SERVER, MODEL, Dialect, Reply

CONTEXT = 8_192


Script = Callable[[dict[str, Any]], Reply]


class ModelServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(
        self, script: Script, key: str | None = None, dialect: Dialect | None = None, behind: str | None = None
    ) -> None:
        """Without a dialect it speaks as a llama-server does, in the language that it is asked in. `behind` is the
        address of the server whose model it stands in for."""
        super().__init__(("127.0.0.1", 0), Handler)
        self.script = script
        self.key = key
        self.dialect = dialect
        self.behind = behind
        self.bodies: list[bytes] = []  # of requests for an answer
        self.keys: list[str] = []
        self.text_sent: list[float] = []  # when each piece of text left
        self.gone = threading.Event()  # a client left before the end

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves with something unread resets its connection, which is no failure of this server: told
        to standard error, it would stand in what the chat under test has said."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def requests(self) -> list[dict[str, Any]]:
        return [json.loads(body) for body in self.bodies]


@contextmanager
def model_server(
    script: Script, key: str | None = None, dialect: Dialect | None = None, behind: str | None = None
) -> Iterator[ModelServer]:
    with answering(ModelServer(script, key, dialect, behind)) as server:
        yield server


def messages_on_the_wire(body: bytes) -> bytes:
    """The bytes of the messages, without the bracket that ends them."""
    text = body.decode()
    start = text.index('"messages":') + len('"messages":')
    start += len(text[start:]) - len(text[start:].lstrip())
    _, end = json.JSONDecoder().raw_decode(text, start)
    return text[start : end - 1].encode()


class Handler(BaseHTTPRequestHandler):
    server: ModelServer

    def do_GET(self) -> None:
        if self.server.behind is not None:
            self._pass_on()
            return
        answers: dict[str, Any] = {
            "/health": {"status": "ok"},
            "/v1/models": {"data": [{"id": MODEL}]},
            "/props": {"default_generation_settings": {"n_ctx": CONTEXT}},
        }
        self._json(200, answers.get(self.path, {}))

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.behind is not None and not self.path.endswith("/chat/completions"):
            self._pass_on(data)
            return
        if self.path == "/tokenize":
            self._json(200, {"tokens": json.loads(data)["content"].split()})
            return
        key = self.headers.get("x-api-key") or self.headers.get("Authorization", "").removeprefix("Bearer ")
        self.server.bodies.append(data)
        self.server.keys.append(key)
        if self.server.key is not None and key != self.server.key:
            reply = Reply(status=401, error=f"the key {key} is wrong")
        else:
            reply = self.server.script(json.loads(data))
        dialect = self.server.dialect or (ANTHROPIC if self.path.endswith("/messages") else LLAMA_SERVER)
        if reply.status != 200:
            extra = {"Retry-After": reply.retry_after} if reply.retry_after else {}
            self._json(reply.status, dialect.error(reply.status, reply.error or "no"), extra)
            return
        try:
            self._stream(reply, dialect)
        except OSError:
            self.server.gone.set()

    def _stream(self, reply: Reply, dialect: Dialect) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        anthropic = dialect is ANTHROPIC
        pieces = list(dialect.events(reply))
        broken = reply.cut or reply.silent_cut or reply.malformed or reply.error_event
        time.sleep(reply.delay)
        for name, event in pieces[: len(pieces) // 2] if broken else pieces:
            time.sleep(reply.pause)
            data = json.dumps(event)
            self._event(name, data)
            if any(json.dumps(text) in data for text in reply.text):
                self.server.text_sent.append(time.time())
        if reply.malformed:
            self._event("content_block_delta" if anthropic else "", '{"half": ')
        if reply.error_event:
            self._event("error" if anthropic else "", json.dumps(dialect.error_event("Overloaded")))
        if reply.cut:
            self.wfile.flush()
            self.connection.shutdown(2)
            return
        if not anthropic and not broken:
            self._event("", "[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, name: str, data: str) -> None:
        text = (f"event: {name}\n" if name else "") + f"data: {data}\n\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(text.encode()), text.encode()))
        self.wfile.flush()

    def _pass_on(self, data: bytes | None = None) -> None:
        answer = requests.request(self.command, f"{self.server.behind}{self.path}", data=data, timeout=60)
        self.send_response(answer.status_code)
        self.send_header("Content-Type", answer.headers.get("Content-Type", "text/plain"))
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    def _json(self, status: int, answer: Any, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        for name, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(data)),
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: Any) -> None:
        pass
