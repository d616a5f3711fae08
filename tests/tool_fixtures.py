"""A toolbox in a folder of its own, and a web server for its HTTP tools."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from fakes.answering import answering

from pyrun.tools.setup import Setup
from pyrun.tools.tool import ToolError
from pyrun.tools.toolbox import Toolbox


@dataclass
class Bench:
    """Folders: `work` is the root, `outside` lies beside it and has a secret."""

    folder: Path

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @property
    def outside(self) -> Path:
        return self.folder / "outside"

    @property
    def log(self) -> Path:
        return self.folder / "logs" / "tools.jsonl"

    def box(self, *allow: str, **more: Any) -> Toolbox:
        values: dict[str, Any] = {
            "root": self.work,
            "memory": self.folder / "memory",
            "memory_limit": 10**9,
            "logs": self.folder / "logs",
            "user": "",
            "allow": allow,
            "commands": True,
            "include": {},
            "providers": [],
            "protected": (self.folder / "memory",),
        }
        return Toolbox(Setup(**{**values, **more}))

    def calls(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    made.work.mkdir()
    made.outside.mkdir()
    (made.outside / "secret.txt").write_text("the secret")
    (made.work / "inside.txt").write_text("inside\n")
    return made


def call(box: Toolbox, tool: str, /, **arguments: Any) -> str:
    """As if a person had said yes to everything: what is refused is refused by the tool itself."""
    return box.make(box.prepare(tool, arguments))


def refusal(box: Toolbox, tool: str, /, **arguments: Any) -> str:
    with pytest.raises(ToolError) as refused:
        call(box, tool, **arguments)
    return str(refused.value)


def stopped_call(box: Toolbox, tool: str, /, **arguments: Any) -> str:
    """What is told of a call that its client cancels soon."""
    pending = box.prepare(tool, arguments)
    timer = threading.Timer(0.3, pending.call.stopped.set)
    timer.start()
    with pytest.raises(ToolError) as told:
        box.make(pending)
    timer.join()
    return str(told.value)


class Handler(BaseHTTPRequestHandler):
    """/to?URL redirects, /echo tells what it got, /drip never ends, /endless neither, /binary and /large are that."""

    def do_GET(self) -> None:
        self.server.seen.append((self.command, self.path, dict(self.headers)))  # type: ignore[attr-defined]
        kind, _, rest = self.path.partition("?")
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        if kind.startswith("/to"):
            self.send_response(int(kind[3:] or 302))
            self.send_header("Location", rest)
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.end_headers()
        try:
            if kind == "/endless":
                while True:
                    self.wfile.write(b"x" * 65536)
            elif kind == "/drip":
                while True:
                    self.wfile.write(b".")
                    self.server.slow.wait(0.05)  # type: ignore[attr-defined]
            elif kind == "/binary":
                self.wfile.write(bytes(range(256)))
            else:
                told = {"method": self.command, "host": self.headers["Host"], "body": body.decode(), "path": self.path}
                self.wfile.write(json.dumps({**told, "mark": self.headers.get("X-Mark")}).encode())
        except OSError:
            return  # the client has had enough

    do_POST = do_PUT = do_DELETE = do_GET

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@contextmanager
def web_server() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.seen = []  # type: ignore[attr-defined]
    server.slow = threading.Event()  # type: ignore[attr-defined]
    with answering(server):
        try:
            yield server
        finally:
            server.slow.set()  # type: ignore[attr-defined]


@pytest.fixture
def web() -> Iterator[ThreadingHTTPServer]:
    with web_server() as server:
        yield server
