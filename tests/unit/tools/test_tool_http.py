"""Requests to servers, and how they are cancelled."""

from __future__ import annotations

import json
import socket
import sys
import threading
from http.server import ThreadingHTTPServer
from typing import Any

import pytest
from tool_fixtures import Bench, call, stopped_call

from pyrun.tools.http import HttpTools
from pyrun.tools.rules import read_rules
from pyrun.tools.tool import Call, ToolError


def test_http_speaks_all_four_methods(bench: Bench, web: ThreadingHTTPServer) -> None:
    box = bench.box(f"address:127.0.0.1:{web.server_port}")
    url = f"http://127.0.0.1:{web.server_port}/echo?a=b&c=ü d%20e"
    for method, body in (("GET", None), ("POST", "sent ü"), ("PUT", "put"), ("DELETE", None)):
        arguments: dict[str, Any] = {"url": url, "headers": {"X-Mark": "seen"}, **({"body": body} if body else {})}
        result = call(box, f"http_{method.lower()}", **arguments)
        head, _, told = result.partition("\n\n")
        assert f"{url}\n200 OK\n" in head
        answer = json.loads(told)
        assert (answer["method"], answer["body"], answer["mark"]) == (method, body or "", "seen")
        assert answer["path"] == "/echo?a=b&c=%C3%BC%20d%20e"


def test_a_cancelled_request_ends_while_its_server_answers(bench: Bench, web: ThreadingHTTPServer) -> None:
    box = bench.box(f"address:127.0.0.1:{web.server_port}")
    url = f"http://127.0.0.1:{web.server_port}/drip"
    assert "the call was cancelled" in stopped_call(box, "http_get", url=url, timeout=30)


def test_what_is_cancelled_before_it_is_sent_is_not_sent(web: ThreadingHTTPServer) -> None:
    stopped = threading.Event()

    def slowly(host: str, port: int) -> list[str]:
        stopped.set()
        return ["127.0.0.1"]

    tools = HttpTools(read_rules([f"address:127.0.0.1:{web.server_port}"]), slowly)
    call = Call({"url": f"http://slow.example:{web.server_port}/echo", "body": "once"}, stopped=stopped)
    with pytest.raises(ToolError, match="the call was cancelled"):
        tools.request("POST", call)
    assert web.seen == []  # type: ignore[attr-defined]


@pytest.mark.skipif(sys.platform != "linux", reason="a full queue drops those that come on Linux only")
def test_a_cancelled_request_ends_while_nobody_takes_it(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        waiting = [socket.socket() for _ in range(3)]  # they fill its queue
        try:
            for one in waiting:
                one.setblocking(False)
                one.connect_ex(listener.getsockname())
            port = listener.getsockname()[1]
            box = bench.box(f"address:127.0.0.1:{port}")
            told = stopped_call(box, "http_get", url=f"http://127.0.0.1:{port}/", timeout=30)
            assert "the call was cancelled" in told
        finally:
            for one in waiting:
                one.close()
