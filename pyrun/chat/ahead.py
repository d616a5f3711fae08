"""Has the local server evaluate what the next cut will keep while the person reads. A question goes first."""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import threading
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from pyrun.providers import openai_stream
from pyrun.providers.events import Request
from pyrun.providers.known import Provider

TIMEOUT_SECONDS = 3_600.0


class Ahead:
    """One prompt at a time. Whatever goes wrong with it costs nothing but the head start."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: http.client.HTTPConnection | None = None
        self._done: set[object] = set()

    def start(self, provider: Provider, request: Request, cut: object) -> None:
        """`cut` names the cut that it is for: each is prepared once, however long the conversation waits for it."""
        with self._lock:
            if self._connection is not None or cut in self._done:
                return
            self._connection = connection = _connect(provider)
        body = {**openai_stream.body(provider, request), "stream": False}
        del body["stream_options"]
        arguments = (connection, provider, body, cut)
        threading.Thread(target=self._run, args=arguments, name="ahead", daemon=True).start()

    def stop(self) -> None:
        """The server notices that nobody listens any more, and is free for what comes next."""
        with self._lock:
            connection, self._connection = self._connection, None
        sock = connection.sock if connection is not None else None
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _run(
        self, connection: http.client.HTTPConnection, provider: Provider, body: dict[str, Any], cut: object
    ) -> None:
        with suppress(OSError, http.client.HTTPException):
            connection.connect()
            with self._lock:
                if self._connection is not connection:  # it was stopped before there was anything to close
                    connection.close()
                    return
            headers = {"Content-Type": "application/json"}
            if provider.key:
                headers["Authorization"] = f"Bearer {provider.key}"
            path = urlsplit(provider.base_url).path.rstrip("/")
            connection.request("POST", f"{path}/chat/completions", json.dumps(body), headers)
            connection.getresponse().read()
        with self._lock:
            if self._connection is connection:  # it was not stopped: what failed now would fail again
                self._connection = None
                self._done.add(cut)
        connection.close()


def _connect(provider: Provider) -> http.client.HTTPConnection:
    address = urlsplit(provider.base_url)
    host = address.hostname or ""
    if address.scheme == "https":
        context = ssl.create_default_context(cafile=os.environ.get("REQUESTS_CA_BUNDLE"))
        return http.client.HTTPSConnection(host, address.port, timeout=TIMEOUT_SECONDS, context=context)
    return http.client.HTTPConnection(host, address.port, timeout=TIMEOUT_SECONDS)
