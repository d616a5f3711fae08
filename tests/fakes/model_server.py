"""A stand-in for every service that models are at: OpenAI's and Anthropic's streams, by a script, and their troubles.

Events are made from the packages' own types, so that what a service could not send is not sent here either. The bodies
of all requests are kept as they came over the wire.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from anthropic.types import (
    RawContentBlockDeltaEvent,
    RawContentBlockStartEvent,
    RawContentBlockStopEvent,
    RawMessageDeltaEvent,
    RawMessageStartEvent,
    RawMessageStopEvent,
)
from openai.types.chat import ChatCompletionChunk

MODEL = "stand-in"
CONTEXT = 8_192


@dataclass
class Reply:
    """What is answered: an error, or a stream that may break."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)  # id, name, arguments
    status: int = 200
    error: str = ""
    retry_after: str | None = None
    cut: bool = False  # the connection breaks before the end
    silent_cut: bool = False  # the stream ends in good order, and too early
    malformed: bool = False  # an event that is no JSON
    error_event: bool = False  # an error in the middle of the stream
    pause: float = 0.0  # before each piece
    prompt_tokens: int = 100
    cached_tokens: int = 60


Script = Callable[[dict[str, Any]], Reply]


class ModelServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, script: Script, key: str | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script = script
        self.key = key
        self.bodies: list[bytes] = []  # of requests for an answer
        self.keys: list[str] = []
        self.sent_first: list[float] = []  # when the first piece of text left
        self.gone = threading.Event()  # a client left before the end

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def requests(self) -> list[dict[str, Any]]:
        return [json.loads(body) for body in self.bodies]


@contextmanager
def model_server(script: Script, key: str | None = None) -> Iterator[ModelServer]:
    server = ModelServer(script, key)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


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
        answers: dict[str, Any] = {
            "/health": {"status": "ok"},
            "/v1/models": {"data": [{"id": MODEL}]},
            "/props": {"default_generation_settings": {"n_ctx": CONTEXT}},
        }
        self._json(200, answers.get(self.path, {}))

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
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
        if reply.status != 200:
            extra = {"Retry-After": reply.retry_after} if reply.retry_after else {}
            kind = {401: "authentication_error", 429: "rate_limit_error", 529: "overloaded_error"}
            error = {"type": kind.get(reply.status, "api_error"), "message": reply.error or "no"}
            self._json(reply.status, {"type": "error", "error": error}, extra)
            return
        try:
            self._stream(reply, anthropic=self.path.endswith("/messages"))
        except OSError:
            self.server.gone.set()

    def _stream(self, reply: Reply, *, anthropic: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        pieces = list(_anthropic(reply) if anthropic else _openai(reply))
        broken = reply.cut or reply.silent_cut or reply.malformed or reply.error_event
        for name, event in pieces[: len(pieces) // 2] if broken else pieces:
            time.sleep(reply.pause)
            self._event(name, json.dumps(event))
            if "text" in json.dumps(event) or '"content": "' in json.dumps(event):
                self.server.sent_first.append(time.time())
        if reply.malformed:
            self._event("content_block_delta" if anthropic else "", '{"half": ')
        if reply.error_event:
            error = {"type": "overloaded_error", "message": "Overloaded"}
            self._event("error" if anthropic else "", json.dumps({"type": "error", "error": error}))
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


def _openai(reply: Reply) -> Iterator[tuple[str, dict[str, Any]]]:
    def chunk(delta: dict[str, Any], reason: str | None = None, **more: Any) -> tuple[str, dict[str, Any]]:
        choices = [{"index": 0, "delta": delta, "finish_reason": reason}] if delta or reason else []
        made = ChatCompletionChunk.model_validate(
            {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": MODEL, "choices": choices, **more}
        )
        return "", made.model_dump(exclude_unset=True)

    yield chunk({"role": "assistant"})
    for text in reply.reasoning:
        yield chunk({"reasoning_content": text})
    for text in reply.text:
        yield chunk({"content": text})
    for index, (number, name, arguments) in enumerate(reply.calls):
        whole = json.dumps(arguments)
        start = {"index": index, "id": number, "type": "function", "function": {"name": name, "arguments": ""}}
        yield chunk({"tool_calls": [start]})
        for part in (whole[: len(whole) // 2], whole[len(whole) // 2 :]):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
    yield chunk({}, "tool_calls" if reply.calls else "stop")
    usage = {"prompt_tokens": reply.prompt_tokens, "completion_tokens": 7, "total_tokens": reply.prompt_tokens + 7}
    yield chunk({}, usage={**usage, "prompt_tokens_details": {"cached_tokens": reply.cached_tokens}})


def _anthropic(reply: Reply) -> Iterator[tuple[str, dict[str, Any]]]:
    def event(kind: Any, **values: Any) -> tuple[str, dict[str, Any]]:
        made = kind.model_validate(values)
        return values["type"], made.model_dump(exclude_unset=True)

    fresh = reply.prompt_tokens - reply.cached_tokens
    usage = {"input_tokens": fresh, "cache_read_input_tokens": reply.cached_tokens, "output_tokens": 1}
    message: dict[str, Any] = {"id": "1", "type": "message", "role": "assistant", "content": [], "model": MODEL}
    message |= {"stop_reason": None, "stop_sequence": None, "usage": usage}
    yield event(RawMessageStartEvent, type="message_start", message=message)
    blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    if reply.reasoning:
        deltas = [{"type": "thinking_delta", "thinking": text} for text in reply.reasoning]
        deltas.append({"type": "signature_delta", "signature": "signed"})
        blocks.append(({"type": "thinking", "thinking": "", "signature": ""}, deltas))
    if reply.text:
        blocks.append(({"type": "text", "text": ""}, [{"type": "text_delta", "text": text} for text in reply.text]))
    for number, name, arguments in reply.calls:
        whole = json.dumps(arguments)
        parts = (whole[: len(whole) // 2], whole[len(whole) // 2 :])
        deltas = [{"type": "input_json_delta", "partial_json": part} for part in parts]
        blocks.append(({"type": "tool_use", "id": number, "name": name, "input": {}}, deltas))
    for index, (block, deltas) in enumerate(blocks):
        yield event(RawContentBlockStartEvent, type="content_block_start", index=index, content_block=block)
        for delta in deltas:
            yield event(RawContentBlockDeltaEvent, type="content_block_delta", index=index, delta=delta)
        yield event(RawContentBlockStopEvent, type="content_block_stop", index=index)
    reason = "tool_use" if reply.calls else "end_turn"
    stop: dict[str, Any] = {"stop_reason": reason, "stop_sequence": None}
    yield event(RawMessageDeltaEvent, type="message_delta", delta=stop, usage={"output_tokens": 7})
    yield event(RawMessageStopEvent, type="message_stop")
