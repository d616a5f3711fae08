"""Tools for HTTP. Private addresses are refused, and the address that was looked at is the one that is connected to."""

from __future__ import annotations

import http.client
import ipaddress
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit

from pyrun.tools.rules import Address, Rules
from pyrun.tools.tool import Call, Tool, ToolError, number, text

DEFAULT_SECONDS = 30
MAX_SECONDS = 300
MAX_BODY_BYTES = 1_000_000
MAX_REDIRECTS = 5
LATE = "it took too long"
LOOK_SECONDS = 0.1  # so long an end may take to be noticed
REDIRECTS = (301, 302, 303, 307, 308)
OWN_HEADERS = (
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "accept-encoding",
    "upgrade",
    "expect",
    "te",
)
NAT64 = ipaddress.ip_network("64:ff9b::/96")
PATH_SIGNS = "%/:?#[]@!$&'()*+,;=~"  # all that have a meaning, and what is quoted already
HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")

Resolve = Callable[[str, int], list[str]]


@dataclass(frozen=True)
class Answer:
    status: int
    reason: str
    headers: list[tuple[str, str]]
    body: bytes
    is_cut: bool


class HttpTools:
    def __init__(self, rules: Rules, resolve: Resolve | None = None) -> None:
        self.rules = rules
        self.resolve = resolve or addresses_of

    def tools(self) -> list[Tool]:
        url = text("The address: http:// or https://", maxLength=8000)
        headers = {
            "type": "object",
            "description": "Headers to send.",
            "additionalProperties": {"type": "string", "maxLength": 8000},
            "maxProperties": 50,
        }
        timeout = number(f"Seconds to wait in all ({DEFAULT_SECONDS} if left out).", 1, MAX_SECONDS)
        body = text("What to send.")
        with_body = {"url": url, "body": body, "headers": headers, "timeout": timeout}
        without = {"url": url, "headers": headers, "timeout": timeout}

        def tool(method: str, what: str, parameters: dict[str, Any]) -> Tool:
            return Tool(
                f"http_{method.lower()}",
                f"{what} Answers with status, headers and text. Private addresses are refused unless they are allowed.",
                parameters,
                lambda call: self.request(method, call),
                ("url",),
                changes=method != "GET",
                subject="url",
                settle=_settled,
            )

        return [
            tool("GET", "Get what is at an address.", without),
            tool("POST", "Send something to an address.", with_body),
            tool("PUT", "Put something to an address.", with_body),
            tool("DELETE", "Delete what is at an address.", without),
        ]

    def request(self, method: str, call: Call) -> str:
        headers = _checked_headers(call.arguments.get("headers", {}))
        body = call.text("body").encode("utf-8", "replace") if "body" in call.arguments else None
        deadline = time.monotonic() + call.number("timeout", DEFAULT_SECONDS)
        url = _parsed(call.text("url"))
        for _ in range(MAX_REDIRECTS + 1):
            answer = self._once(method, url, headers, body, deadline, call.stopped)
            location = next((value for name, value in answer.headers if name.lower() == "location"), None)
            if answer.status not in REDIRECTS or location is None:
                return _told(url, answer)
            following = _parsed(urljoin(url.geturl(), location))
            if method != "GET" and answer.status in (301, 302, 303):
                method, body = "GET", None
            if (following.scheme, following.netloc) != (url.scheme, url.netloc):
                if method != "GET":
                    raise ToolError(f"{url.netloc} sends this on to {following.netloc}; ask there, if that is meant")
                headers = {}  # what one server is told is not for another
            url = following
        raise ToolError(f"{call.text('url')} leads from one address to the next, more than {MAX_REDIRECTS} times")

    def _once(
        self,
        method: str,
        url: SplitResult,
        headers: dict[str, str],
        body: bytes | None,
        deadline: float,
        stopped: threading.Event,
    ) -> Answer:
        host, port = _host_and_port(url)
        addresses = self._checked_addresses(host, port)
        connection = _Connection(host, port, addresses, url.scheme == "https", deadline, stopped)
        path = quote(url.path or "/", safe=PATH_SIGNS) + (f"?{quote(url.query, safe=PATH_SIGNS)}" if url.query else "")
        try:
            connection.request(method, path, body=body, headers={"Accept-Encoding": "identity", **headers})
            with connection.getresponse() as response:
                data = response.read(MAX_BODY_BYTES + 1)
                if connection.why_cut:
                    raise TimeoutError
                is_cut = len(data) > MAX_BODY_BYTES
                return Answer(response.status, response.reason, response.getheaders(), data[:MAX_BODY_BYTES], is_cut)
        except (OSError, http.client.HTTPException, ValueError) as error:
            late = LATE if isinstance(error, TimeoutError) else ""
            why = connection.why_cut or late or str(error) or type(error).__name__
            raise ToolError(f"{url.scheme}://{host}:{port} did not answer: {why}") from error
        finally:
            connection.finish()

    def _checked_addresses(self, host: str, port: int) -> list[str]:
        """The addresses of the host; if one of them is private, none is taken."""
        try:
            found = self.resolve(host, port)
        except (OSError, UnicodeError) as error:
            raise ToolError(f"{host[:200]} has no address: {error}") from error
        if not found:
            raise ToolError(f"{host} has no address")
        for text_ in found:
            address = ipaddress.ip_address(text_.partition("%")[0])
            if not is_public(address) and not self.rules.opens(address, port):
                raise ToolError(
                    f"{host} is the private address {address}; a person can allow it: --allow address:"
                    + (f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}")
                )
        return found


def addresses_of(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def is_public(address: Address) -> bool:
    """Also what is wrapped into an IPv6 address must be public."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped:
            return is_public(address.ipv4_mapped)
        if address in NAT64:
            return is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        inner = address.sixtofour or (address.teredo[1] if address.teredo else None)
        if address.is_site_local or (inner is not None and not is_public(inner)):
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved


class _Connection(http.client.HTTPConnection):
    """To the addresses that were looked at, whatever the name has by now; the name goes into Host, and into the check
    of the certificate.

    It is cut at the deadline, also while a server sends a byte now and then, and when the call is stopped.
    """

    def __init__(
        self, host: str, port: int, addresses: list[str], secure: bool, deadline: float, stopped: threading.Event
    ) -> None:
        self._deadline = deadline
        super().__init__(host, port, timeout=self._left())
        self.default_port = 443 if secure else 80
        self.why_cut = ""
        self._addresses = addresses
        self._secure = secure
        self._stopped = stopped
        self._watched: list[socket.socket] = []
        self._finished = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def connect(self) -> None:
        self._watcher.start()
        self.sock = self._first_that_answers()
        if self._secure:
            context = ssl.create_default_context()
            self.sock = context.wrap_socket(self.sock, server_hostname=self.host)
        self._check()  # Behind this it is sent.

    def _first_that_answers(self) -> socket.socket:
        for address in self._addresses[:-1]:  # a machine may have no way to some of them, such as those of IPv6
            with suppress(OSError):
                return self._connected(address)
        return self._connected(self._addresses[-1])

    def _connected(self, address: str) -> socket.socket:
        """Watched before it is connected, which may take as long as an answer."""
        self._check()
        family, kind, protocol, _, place = socket.getaddrinfo(address, self.port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, protocol)
        self._watched.append(made.dup())
        try:
            made.settimeout(self._left())
            made.connect(place)
        except OSError:
            made.close()
            raise
        return made

    def _left(self) -> float:
        return max(0.001, self._deadline - time.monotonic())

    def _is_over(self) -> bool:
        if self._stopped.is_set():
            self.why_cut = "the call was cancelled"
        elif time.monotonic() > self._deadline:
            self.why_cut = LATE
        return bool(self.why_cut)

    def _check(self) -> None:
        if self._is_over():
            raise TimeoutError

    def _watch(self) -> None:
        """Cuts more than once: what is cut before it is connected is connected all the same."""
        while not self._finished.wait(LOOK_SECONDS):
            if self._is_over():
                for watched in self._watched:
                    with suppress(OSError):
                        watched.shutdown(socket.SHUT_RDWR)

    def finish(self) -> None:
        """Not `close`: that is called as soon as the answer's head says that the server will close."""
        self.close()
        self._finished.set()
        if self._watcher.ident is not None:
            self._watcher.join()
        for watched in self._watched:
            watched.close()


def _settled(url: str) -> str:
    """An address that leads where it says: rules look at how it begins. Servers decode `%2e`, some of them twice, take
    a backslash for a slash and leave out what follows a semicolon, or an encoded end of the path."""
    path = _parsed(url).path
    while (plain := unquote(path)) != path:
        path = plain
    if {".", ".."} & set(re.split(r"[/\\;?#\0]", path)):
        raise ToolError(f"{url[:200]!r} has '.' or '..' as a part of its path; write the address that it leads to")
    return url


def _parsed(url: str) -> SplitResult:
    if re.search(r"[\x00-\x1f\x7f]", url):
        raise ToolError("an address has no line ends or the like in it")
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https"):
            raise ToolError(f"{url[:200]!r}: only http and https are spoken")
        _host_and_port(parts)
    except ValueError as error:
        raise ToolError(f"{url[:200]!r} is no address: {error}") from error
    if parts.username is not None or parts.password is not None:
        raise ToolError("a name and a password do not belong into an address; send a header")
    return parts


def _host_and_port(parts: SplitResult) -> tuple[str, int]:
    if not parts.hostname:
        raise ValueError("it names no host")
    return parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


def _checked_headers(headers: dict[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not HEADER_NAME.fullmatch(name) or re.search(r"[\r\n\0]", value):
            raise ToolError(f"{name[:100]!r} is no header")
        if name.lower() in OWN_HEADERS:
            raise ToolError(f"the header {name} is not for the caller to set")
    return headers


def _told(url: SplitResult, answer: Answer) -> str:
    headers = "\n".join(f"{name}: {value}" for name, value in answer.headers)[:8000]
    head = f"{url.geturl()}\n{answer.status} {answer.reason}\n{headers}\n\n"
    if b"\0" in answer.body[:8192]:
        return f"{head}[{len(answer.body):,} bytes that are no text]"
    charset = re.search(r"charset=\"?([\w-]+)", headers, re.IGNORECASE)
    try:
        body = answer.body.decode(charset[1] if charset else "utf-8", "replace")
    except LookupError:
        body = answer.body.decode("utf-8", "replace")
    return head + body + (f"\n[cut after {MAX_BODY_BYTES:,} bytes]" if answer.is_cut else "")
