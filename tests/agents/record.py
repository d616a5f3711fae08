"""A server for looking at agents: it writes down every request and answers as a model would that calls one tool.

It speaks OpenAI chat completions, OpenAI Responses and Anthropic messages, streamed or whole. To see how long an agent
waits, it can be told to stall: before the first byte, before the first event, there with comments as pings, or
between events.

    python tests/agents/record.py --port 9191 --into FOLDER [--stall headers|first|pings|between --seconds 60]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import select
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Json = dict[str, Any]

# Tools that run a command, by the names that agents give them. Anything else is never called.
SHELLS = ("bash", "shell", "exec_command", "shell_command", "execute_command", "run_commands", "run_terminal_command")
COMMAND = "echo recorded"
LOOKING = "I look."
ANSWER = "It is done."
MODEL = "recorded"
CONTEXT = 200_000
PING_SECONDS = 1.0


@dataclass(frozen=True)
class Reply:
    """What the model says: a text, or a call of a tool."""

    text: str
    tool: str | None = None
    arguments: Json = field(default_factory=dict)
    kind: str = "function"
    number: int = 0  # of the request: agents take answers with one id for one answer

    @property
    def words(self) -> list[str]:
        return re.findall(r"\S+\s*", self.text)


def choose_reply(body: Json, number: int) -> Reply:
    """Calls a shell once for each thing that the user says, and then answers."""
    if "<attempt_completion>" in str((body.get("messages") or [{}])[0]):
        return _in_prose(body["messages"], number)
    shell = next(iter(_shells(body.get("tools") or [])), None)
    if shell is None or _has_result(body.get("messages") or body.get("input") or []):
        return Reply(ANSWER, number=number)
    return replace(shell, number=number)


def _in_prose(messages: list[Json], number: int) -> Reply:
    """As Cline wants it: its tools are described in the system prompt, and a call is written as XML."""
    if "[execute_command" in json.dumps(messages[-1]):
        return Reply(f"<attempt_completion>\n<result>{ANSWER}</result>\n</attempt_completion>", number=number)
    approval = "<requires_approval>false</requires_approval>"
    return Reply(f"<execute_command>\n<command>{COMMAND}</command>\n{approval}\n</execute_command>", number=number)


def _shells(tools: list[Json]) -> Iterator[Reply]:
    for tool in tools:
        about = tool.get("function", tool)
        name = str(about.get("name") or tool.get("type"))
        if name.lower() in SHELLS:
            schema = about.get("parameters") or about.get("input_schema") or {}
            yield Reply(LOOKING, name, _fill(schema), tool.get("type", "function"))


def _fill(schema: Json) -> Json:
    """Arguments that satisfy a schema: the command where a text or a list is wanted, else the plainest value."""
    properties: Json = schema.get("properties", {})
    filled: Json = {}
    for name in schema.get("required") or [n for n in ("command", "cmd") if n in properties]:
        filled[name] = _value(properties.get(name, {}))
    return filled


def _value(wanted: Json) -> Any:
    kind = wanted.get("type", "string")
    if "enum" in wanted:
        return wanted["enum"][0]
    if kind == "array":
        return COMMAND.split() if wanted.get("items", {}).get("type") == "string" else []
    if kind == "object":
        return _fill(wanted)
    return {"boolean": False, "integer": 1, "number": 1}.get(str(kind), COMMAND)


def _has_result(turns: list[Json] | str) -> bool:
    """Whether a tool has answered since the user last spoke."""
    for turn in reversed(turns if isinstance(turns, list) else []):
        if turn.get("role") == "tool" or str(turn.get("type", "")).endswith("_output"):
            return True
        content = turn.get("content")
        parts = content if isinstance(content, list) else []
        if any(part.get("type") == "tool_result" for part in parts):
            return True
        if turn.get("role") == "user":
            return False
    return False


# Each of these gives the events of a stream: a name, or None where the protocol has none, and the data.
Events = Iterator[tuple[str | None, Json | str]]


def chat_events(reply: Reply) -> Events:
    def chunk(delta: Json, finish: str | None = None) -> tuple[None, Json]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return None, {
            "id": f"chat-{reply.number}",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": MODEL,
            "choices": [choice],
        }

    yield chunk({"role": "assistant", "content": ""})
    for word in reply.words:
        yield chunk({"content": word})
    if reply.tool:
        function = {"name": reply.tool, "arguments": json.dumps(reply.arguments)}
        yield chunk(
            {"tool_calls": [{"index": 0, "id": f"call_{reply.number}", "type": "function", "function": function}]}
        )
    yield chunk({}, "tool_calls" if reply.tool else "stop")
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    yield (
        None,
        {
            "id": f"chat-{reply.number}",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": MODEL,
            "choices": [],
            "usage": usage,
        },
    )
    yield None, "[DONE]"


def chat_whole(reply: Reply) -> Json:
    message: Json = {"role": "assistant", "content": reply.text}
    if reply.tool:
        function = {"name": reply.tool, "arguments": json.dumps(reply.arguments)}
        message["tool_calls"] = [{"id": f"call_{reply.number}", "type": "function", "function": function}]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if reply.tool else "stop"}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    return {
        "id": f"chat-{reply.number}",
        "object": "chat.completion",
        "created": 1,
        "model": MODEL,
        "choices": [choice],
        "usage": usage,
    }


def message_events(reply: Reply) -> Events:
    whole = message_whole(reply)
    yield "message_start", {"type": "message_start", "message": whole | {"content": [], "stop_reason": None}}
    for index, block in enumerate(whole["content"]):
        is_text = block["type"] == "text"
        emptied: Json = {"text": ""} if is_text else {"input": {}}
        empty = block | emptied
        yield "content_block_start", {"type": "content_block_start", "index": index, "content_block": empty}
        pieces: Iterable[Json] = (
            ({"type": "text_delta", "text": word} for word in reply.words)
            if is_text
            else [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
        )
        for piece in pieces:
            yield "content_block_delta", {"type": "content_block_delta", "index": index, "delta": piece}
        yield "content_block_stop", {"type": "content_block_stop", "index": index}
    delta = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield "message_delta", {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 5}}
    yield "message_stop", {"type": "message_stop"}


def message_whole(reply: Reply) -> Json:
    content: list[Json] = [{"type": "text", "text": reply.text}]
    if reply.tool:
        content.append(
            {"type": "tool_use", "id": f"toolu_{reply.number}", "name": reply.tool, "input": reply.arguments}
        )
    return {
        "id": f"msg_{reply.number}",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": content,
        "stop_reason": "tool_use" if reply.tool else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 5},
    }


def response_events(reply: Reply) -> Events:
    whole = response_whole(reply)
    yield _typed("response.created", {"response": whole | {"status": "in_progress", "output": []}})
    for index, item in enumerate(whole["output"]):
        place = {"output_index": index, "item_id": item["id"]}
        empty = item | {"status": "in_progress"} | ({"content": []} if item["type"] == "message" else {})
        yield _typed("response.output_item.added", {"output_index": index, "item": empty})
        if item["type"] == "message":
            part = item["content"][0]
            yield _typed("response.content_part.added", place | {"content_index": 0, "part": part | {"text": ""}})
            for word in reply.words:
                yield _typed("response.output_text.delta", place | {"content_index": 0, "delta": word})
            yield _typed("response.output_text.done", place | {"content_index": 0, "text": part["text"]})
            yield _typed("response.content_part.done", place | {"content_index": 0, "part": part})
        elif item["type"] == "function_call":
            yield _typed("response.function_call_arguments.delta", place | {"delta": item["arguments"]})
            yield _typed("response.function_call_arguments.done", place | {"arguments": item["arguments"]})
        yield _typed("response.output_item.done", {"output_index": index, "item": item})
    yield _typed("response.completed", {"response": whole})


def _typed(name: str, data: Json) -> tuple[str, Json]:
    return name, {"type": name, "sequence_number": 0} | data


def response_whole(reply: Reply) -> Json:
    text = {"type": "output_text", "text": reply.text, "annotations": []}
    output: list[Json] = [
        {"type": "message", "id": f"item_{reply.number}", "role": "assistant", "status": "completed", "content": [text]}
    ]
    if reply.tool:
        call: Json = {"id": f"item_{reply.number}_call", "call_id": f"call_{reply.number}", "status": "completed"}
        if reply.kind == "local_shell":
            call |= {"type": "local_shell_call", "action": {"type": "exec", "command": COMMAND.split(), "env": {}}}
        else:
            call |= {"type": "function_call", "name": reply.tool, "arguments": json.dumps(reply.arguments)}
        output.append(call)
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    return {
        "id": f"resp_{reply.number}",
        "object": "response",
        "created_at": 1,
        "model": MODEL,
        "status": "completed",
        "output": output,
        "usage": usage | details,
    }


PROTOCOLS = {
    "chat/completions": (chat_events, chat_whole),
    "responses": (response_events, response_whole),
    "messages": (message_events, message_whole),
}


@dataclass
class Recorder:
    """Where requests are written, and how slowly they are answered."""

    folder: Path
    stall: str | None = None
    seconds: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)
    count: int = 0

    def keep(self, request: Json) -> int:
        with self.lock:
            self.count += 1
            number = self.count
        path = self.folder / f"{number:03}.json"
        path.write_text(json.dumps(request, indent=1, ensure_ascii=False), encoding="utf-8")
        return number


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    recorder: Recorder

    def do_HEAD(self) -> None:
        self._send(b"", "text/plain")

    def do_GET(self) -> None:
        self._keep(None)
        path = self.path.split("?")[0]
        if path.endswith("/models"):
            known = {
                "id": MODEL,
                "object": "model",
                "type": "model",
                "display_name": MODEL,
                "created": 1,
                "owned_by": "us",
            }
            self._json({"object": "list", "data": [known | {"meta": {"n_ctx": CONTEXT}}], "has_more": False})
        elif path == "/props":
            self._json({"default_generation_settings": {"n_ctx": CONTEXT}, "model_alias": MODEL})
        else:
            self._json({"status": "ok"})

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            body = json.loads(raw or b"{}")
        except ValueError:
            body = {"not JSON": len(raw)}
        number = self._keep(body)
        path = self.path.split("?")[0]
        if path.endswith("/count_tokens"):
            self._json({"input_tokens": len(raw) // 4})
            return
        for ending, (events, whole) in PROTOCOLS.items():
            if path.endswith(ending):
                started = time.monotonic()
                try:
                    reply = choose_reply(body, number)
                    if body.get("stream"):
                        self._stream(events(reply))
                    else:
                        self._pause("headers")
                        self._json(whole(reply))
                except (BrokenPipeError, ConnectionResetError):
                    print(f"request {number}: the client left after {time.monotonic() - started:.1f} s", flush=True)
                return
        self._json({"error": {"message": f"no route {path}"}}, 404)

    def _keep(self, body: object) -> int:
        headers = dict(self.headers.items())
        number = self.recorder.keep(
            {"at": time.time(), "method": self.command, "path": self.path, "headers": headers, "body": body}
        )
        print(f"request {number}: {self.command} {self.path}", flush=True)
        return number

    def _stream(self, events: Events) -> None:
        self._pause("headers")
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.flush()
        self.close_connection = True
        for number, (name, data) in enumerate(events):
            if number == 0:
                self._pause("first")
                self._pause("pings", b": here\n\n")
            elif number == 3:
                self._pause("between")
            text = data if isinstance(data, str) else json.dumps(data)
            self.wfile.write(f"event: {name}\n".encode() if name else b"")
            self.wfile.write(f"data: {text}\n\n".encode())
            self.wfile.flush()

    def _pause(self, where: str, ping: bytes = b"") -> None:
        """Stalls if this is the place, until the client leaves: then the connection reads as ended."""
        end = time.monotonic() + (self.recorder.seconds if self.recorder.stall == where else 0.0)
        while time.monotonic() < end:
            if select.select([self.connection], [], [], PING_SECONDS)[0]:
                if not self.connection.recv(1, socket.MSG_PEEK):
                    raise ConnectionResetError
                time.sleep(PING_SECONDS)
            self.wfile.write(ping)
            self.wfile.flush()

    def _json(self, answer: Json, status: int = 200) -> None:
        self._send(json.dumps(answer).encode(), "application/json", status)

    def _send(self, content: bytes, kind: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Requests are printed by us, with their numbers."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, default=9191)
    parser.add_argument("--into", type=Path, required=True, help="the folder for the requests, one file each")
    parser.add_argument("--stall", choices=("headers", "first", "pings", "between"), help="where to wait")
    parser.add_argument("--seconds", type=float, default=0.0, help="how long")
    options = parser.parse_args()
    options.into.mkdir(mode=0o700, parents=True, exist_ok=True)
    Handler.recorder = Recorder(options.into, options.stall, options.seconds)
    server = ThreadingHTTPServer(("127.0.0.1", options.port), Handler)
    print(f"listening on http://127.0.0.1:{server.server_port}", file=sys.stderr)
    with contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()


if __name__ == "__main__":
    main()
