"""A stand-in for llama-server that misbehaves on request: starts slowly, crashes, ignores SIGTERM, refuses to start,
takes long to save, says things in its log.

Each start appends a line to --journal, so that tests can count and find its processes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--load-seconds", type=float, default=0.0, help="answer 503 for so long")
    parser.add_argument("--crash-after", type=float, help="kill oneself so long after the start")
    parser.add_argument("--exit-code", type=int, help="say why and exit at once with this code")
    parser.add_argument("--ignore-sigterm", action="store_true")
    parser.add_argument("--save-seconds", type=float, help="write to disk for so long before ending")
    parser.add_argument("--save-in-child", action="store_true", help="have another process do so")
    parser.add_argument("--say", action="append", default=[], help="a line for the log, after the start")
    parser.add_argument("--without-tools", action="store_true", help="list none, whatever it was told")
    parser.add_argument("--api-key", help="answer everything but /health with 401 without it; or LLAMA_API_KEY")
    parser.add_argument("--api-key-file", type=Path, help="its last line is the key")
    options, _ = parser.parse_known_args()  # the launcher gives more

    with options.journal.open("a") as journal:
        journal.write(f"{os.getpid()}\n")
    if options.exit_code is not None:
        print("fake: cannot load the model")
        sys.exit(options.exit_code)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if options.ignore_sigterm else lambda *_: os._exit(0))
    if options.save_seconds is not None:
        saves = save_in_child if options.save_in_child else save
        signal.signal(signal.SIGTERM, lambda *_: saves(options.journal.with_name("saved"), options.save_seconds))
    if options.crash_after is not None:
        threading.Timer(options.crash_after, lambda: os.kill(os.getpid(), signal.SIGSEGV)).start()
    for line in ("fake: listening", *options.say):
        with contextlib.suppress(OSError):  # the log's disk may be full
            print(line, flush=True)
    tools = b"[]" if options.without_tools else b'[{"tool": "llama-run_read_file"}]'
    serve(options.port, time.monotonic() + options.load_seconds, find_key(options), tools)


def find_key(options: argparse.Namespace) -> str | None:
    if options.api_key_file:
        return str(options.api_key_file.read_text().splitlines()[-1])
    return options.api_key or os.environ.get("LLAMA_API_KEY", "").split(",")[0] or None


def save(path: Path, seconds: float) -> None:
    end = time.monotonic() + seconds
    with path.open("ab") as file:
        while time.monotonic() < end:
            file.write(bytes(8192))
            file.flush()
            os.fsync(file.fileno())
            time.sleep(0.05)
    os._exit(0)


def save_in_child(path: Path, seconds: float) -> None:
    if child := os.fork():
        os.waitpid(child, 0)
        os._exit(0)
    save(path, seconds)


def serve(port: int, ready_at: float, key: str | None, tools: bytes) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = key is None or self.path == "/health" or self.headers["Authorization"] == f"Bearer {key}"
            self.send_response(401 if not known else 200 if time.monotonic() >= ready_at else 503)
            self.end_headers()
            answer = tools if self.path == "/tools" else b'{"enabled": false, "reason": "it is a fake"}'
            self.wfile.write(answer if known else b"")

        def log_message(self, format: str, *args: object) -> None:
            pass

    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main()
