"""Lets a stand-in answer, on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import BaseServer
from typing import TypeVar

Answers = TypeVar("Answers", bound=BaseServer)

LOOK_SECONDS = 0.05  # so long an end may take to be noticed


@contextmanager
def answering(server: Answers) -> Iterator[Answers]:
    thread = threading.Thread(target=server.serve_forever, args=(LOOK_SECONDS,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
