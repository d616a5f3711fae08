"""Writes configurations of routers that others make, for several servers of one model. It is pure.

A request goes where its conversation's state is: to the server that had it last, or that its name stands for. None of
them is needed for a right answer; a conversation that comes to another server is evaluated there, or restored from a
shared tier."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from pyrun.errors import UserError

Router = Literal["sglang-router", "haproxy", "nginx"]
ROUTERS: tuple[Router, ...] = ("sglang-router", "haproxy", "nginx")
By = Literal["conversation", "user"]

CONVERSATION_HEADER = "X-Conversation-Id"
# In this order the server itself looks for a conversation's name, but for the header, which is cheaper to find.
CONVERSATION_FIELDS = ("llama_conversation_id", "prompt_cache_key")
USER_FIELDS = ("llama_user_id", "user")
MAX_BODY_MB = 2  # that a router keeps to look into: some 500,000 tokens of text
HEADER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*")


@dataclass(frozen=True)
class Server:
    host: str
    port: int
    is_encrypted: bool = False

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self.is_encrypted else 'http'}://{self.address}"


@dataclass(frozen=True)
class Fleet:
    servers: tuple[Server, ...]
    listen: Server
    by: By = "conversation"
    slots: int = 4  # of a server
    user_header: str | None = None  # that the router sets, and the servers believe
    shared: str | None = None  # the folder of their shared tier

    def __post_init__(self) -> None:
        if self.user_header is not None and not HEADER_NAME.fullmatch(self.user_header):
            raise UserError(f"{self.user_header!r} is not the name of a header", "such as X-Llama-User")
        if len({server.address for server in self.servers}) < len(self.servers):
            raise UserError("a server is named twice", "give each once")


def parse_server(text: str) -> Server:
    """http://10.0.0.5:9090, or without http://."""
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        port = parts.port
    except ValueError:  # a bracket is not closed, or the port is no number
        port = None
    if port is None or parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
        raise UserError(f"{text!r} is not where a server listens", "such as http://10.0.0.5:9090")
    if not re.fullmatch(r"[A-Za-z0-9.:_-]+", parts.hostname):
        raise UserError(f"{parts.hostname!r} is not the name of a machine", "such as 10.0.0.5 or gpu-1.local")
    return Server(parts.hostname, port, parts.scheme == "https")


def write_config(router: Router, fleet: Fleet) -> str:
    return {"sglang-router": _sglang_router, "haproxy": _haproxy, "nginx": _nginx}[router](fleet)


def start_lines(fleet: Fleet) -> list[str]:
    """How each server is started, so that the router reaches it."""
    header = f" --user-header {fleet.user_header}" if fleet.user_header else ""
    tier = f" --cache-ssd-shared {shlex.quote(fleet.shared)}" if fleet.shared else ""
    passed = f" --{tier}{header}" if tier or header else ""
    return [
        f"LLAMA_API_KEY=... llama-run --server MODEL --host {s.host} --port {s.port}{passed}" for s in fleet.servers
    ]


def _sglang_router(fleet: Fleet) -> str:
    if any(server.is_encrypted for server in fleet.servers):
        raise UserError("sglang-router asks its servers without TLS here", "use haproxy or nginx for https servers")
    # It compares the text of prompts, so it needs no names. A prompt that has less in common with what any server had
    # goes to the one that had least. All agents with one long system prompt look alike to it: what keeps them from one
    # server is the balance, which is set by what a server can do at once. Less would move conversations about. A second
    # turn may have but three quarters of its text from the first one: where a conversation that is moved is evaluated
    # again, that is enough to stay; with a shared tier it may go where there is less to do.
    threshold = 0.85 if fleet.shared else 0.5
    words = [
        "exec python -m sglang_router.launch_router",
        f"--host {shlex.quote(fleet.listen.host)} --port {fleet.listen.port}",
        "--worker-urls " + " ".join(shlex.quote(server.url) for server in fleet.servers),
        f"--policy cache_aware --cache-threshold {threshold}",
        f"--balance-abs-threshold {3 * fleet.slots} --balance-rel-threshold 1.1",
        "--request-timeout-secs 3600 --worker-startup-timeout-secs 600",
        "--health-check-endpoint /health --health-check-interval-secs 5",
        # Two on one machine would clash.
        f"--prometheus-host 127.0.0.1 --prometheus-port {fleet.listen.port % 65535 + 1}",
        '${LLAMA_API_KEY:+--api-key "$LLAMA_API_KEY"}',
    ]
    return (
        "#!/bin/sh\n# sglang-router (pip install sglang-router) in front of llama-run servers.\n"
        + " \\\n    ".join(words)
    ) + "\n"


def _order(fleet: Fleet) -> tuple[list[str], list[str]]:
    """Headers and fields of the body that say where a request belongs, the first one that is there counts."""
    user_headers = [fleet.user_header] if fleet.user_header else []
    user_fields = [] if fleet.user_header else list(USER_FIELDS)
    if fleet.by == "user":
        return user_headers, user_fields
    return [CONVERSATION_HEADER, *user_headers], [*CONVERSATION_FIELDS, *user_fields]


def _haproxy(fleet: Fleet) -> str:
    headers, fields = _order(fleet)
    # A conversation's name counts more than a user's, wherever it stands.
    found = [f"req.hdr({name})" for name in headers[:1]]
    found += [f"req.body,json_query('$.{name}')" for name in fields if name in CONVERSATION_FIELDS]
    found += [f"req.hdr({name})" for name in headers[1:]]
    found += [f"req.body,json_query('$.{name}')" for name in fields if name in USER_FIELDS]
    keys = "".join(
        f"    http-request set-var(txn.key) {sample} if !{{ var(txn.key) -m len gt 0 }}\n" for sample in [*found, "src"]
    )
    tls = " ssl verify required ca-file @system-ca"
    servers = "".join(
        f"    server s{i} {server.address} check inter 5s fall 2 rise 1{tls if server.is_encrypted else ''}\n"
        for i, server in enumerate(fleet.servers, 1)
    )
    # Without a shared tier a conversation that is moved is evaluated again.
    bound = "    hash-balance-factor 150\n" if fleet.shared else ""
    return f"""# HAProxy in front of llama-run servers: each conversation has its server.
global
    # Names of conversations stand in bodies, which are looked into as a whole.
    tune.bufsize {MAX_BODY_MB << 20}

defaults
    mode http
    timeout connect 5s
    timeout client 1h
    timeout server 1h
    timeout http-request 60s
    option http-buffer-request
    # A request whose server dies before it answers goes to another one.
    retries 3
    option redispatch 1
    retry-on conn-failure empty-response 503

frontend clients
    bind {fleet.listen.address}
{keys}    default_backend servers

backend servers
    # When servers come and go, only their own conversations move.
    balance hash var(txn.key)
    hash-type consistent
{bound}    option httpchk GET /health
    http-check expect status 200
{servers}"""


def _nginx(fleet: Fleet) -> str:
    headers, fields = _order(fleet)
    variables = [f"$http_{name.lower().replace('-', '_')}" for name in headers]
    conversation = [name for name in fields if name in CONVERSATION_FIELDS]
    users = [name for name in fields if name in USER_FIELDS]
    in_order = [*variables[:1], *(f"$field_{name}" for name in conversation), *variables[1:]]
    in_order += [f"$field_{name}" for name in users]
    maps = "".join(
        f"    map $request_body $field_{name} {{\n"
        f'        default "";\n'
        f'        "~\\"{name}\\"\\s*:\\s*\\"(?<value_{name}>[^\\"]+)\\"" $value_{name};\n'
        f"    }}\n"
        for name in fields
    )
    for i, variable in enumerate(in_order):
        following = f"$key_{i + 1}" if i + 1 < len(in_order) else "$remote_addr"
        maps += f'    map {variable} $key_{i} {{\n        "" {following};\n        default {variable};\n    }}\n'
    key = "$key_0" if in_order else "$remote_addr"
    scheme = "https" if any(server.is_encrypted for server in fleet.servers) else "http"
    if scheme == "https" and not all(server.is_encrypted for server in fleet.servers):
        raise UserError("nginx asks all servers of one group alike", "give http or https addresses, not both")
    servers = "".join(f"        server {s.address} max_fails=1 fail_timeout=10s;\n" for s in fleet.servers)
    return f"""# nginx in front of llama-run servers: each conversation has its server.
worker_processes auto;

events {{
    worker_connections 4096;
}}

http {{
    # Names of conversations stand in bodies, which are looked into as a whole.
    client_body_buffer_size {MAX_BODY_MB}m;
    client_max_body_size 100m;

{maps}
    upstream servers {{
        hash {key} consistent;
{servers}    }}

    server {{
        listen {fleet.listen.address};

        location / {{
            proxy_pass {scheme}://servers;
            proxy_http_version 1.1;
            proxy_set_header Host $http_host;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_connect_timeout 5s;
            proxy_read_timeout 1h;
            # A request that no server has begun with goes to another one.
            proxy_next_upstream error timeout http_503;
            proxy_next_upstream_tries 3;
        }}
    }}
}}
"""


def parse_fleet(
    urls: Sequence[str],
    listen: str,
    by: By = "conversation",
    slots: int = 4,
    user_header: str | None = None,
    shared: str | None = None,
) -> Fleet:
    return Fleet(tuple(parse_server(url) for url in urls), parse_server(listen), by, slots, user_header, shared)
