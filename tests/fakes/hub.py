"""A model hub on this machine that misbehaves on request.

Two real HTTP servers on localhost: the hub (`/api/models...`, `/OWNER/REPO/resolve/...`) and, on another port and so of
another origin, the store that it redirects to for large files. They speak what huggingface_hub uses: model info with
large-file checksums, tree listing, search, HEAD and GET with ETag, X-Linked-Etag, X-Linked-Size and X-Repo-Commit,
relative redirects for small files, signed addresses for large ones, ranges.

    with FakeHub() as hub:
        hub.add("owner/repo", {"model-Q4_K_M.gguf": b"..."})
        hub.faults.append(Fault("store", drop_after=1000))
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

GOOD_TOKEN = "hf_good"
POOR_TOKEN = "hf_poor"  # valid, but with no access to anything gated or private
SMALL_BLOCK = 4096


@dataclass
class Fault:
    """Something that goes wrong at one place (`api`, `resolve` or `store`), so many times."""

    where: str
    times: int = 1
    status: int | None = None  # answer this instead
    headers: Mapping[str, str] = field(default_factory=dict)
    drop_after: int | None = None  # close the connection after so many bytes of the body
    body: bytes | None = None  # send this instead of the file
    ignore_range: bool = False
    declared: int | None = None  # what Content-Length claims
    undeclared: bool = False  # no Content-Length at all: the end of the connection is the end of the file
    wait: float = 0.0  # before the answer
    slow: float = 0.0  # after each block of 4096 bytes
    match: str = ""  # only where the path has this


@dataclass
class Repo:
    files: dict[str, bytes]
    gated: bool = False
    private: bool = False
    large: bool = True  # in large-file storage, with a sha256
    downloads: int = 1
    sizes: dict[str, int] = field(default_factory=dict)  # lies
    checksum: str | None = None  # another lie, about all files

    @property
    def commit(self) -> str:
        text = repr(sorted((path, hashlib.sha256(data).hexdigest()) for path, data in self.files.items()))
        return hashlib.sha1(text.encode()).hexdigest()


@dataclass(frozen=True)
class Request:
    where: str
    method: str
    path: str
    range: str | None
    token: str | None


def git_oid(data: bytes) -> str:
    return hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()


class FakeHub:
    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self.n_sent = 0  # bytes of files
        self._lock = threading.Lock()
        self._servers = [self._server(HubHandler), self._server(StoreHandler)]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._servers[0].server_port}"

    @property
    def store_url(self) -> str:
        return f"http://127.0.0.1:{self._servers[1].server_port}"

    def add(self, name: str, files: dict[str, bytes], **settings: Any) -> Repo:
        self.repos[name] = Repo(files, **settings)
        return self.repos[name]

    def asked(self, where: str, method: str = "GET") -> list[Request]:
        return [request for request in self.requests if (request.where, request.method) == (where, method)]

    def note(self, request: Request) -> Fault:
        """Writes the request down and hands out the fault that it meets; usually one that does nothing."""
        with self._lock:
            self.requests.append(request)
            for fault in self.faults:
                if fault.where == request.where and fault.times > 0 and fault.match in request.path:
                    fault.times -= 1
                    return fault
        return Fault(request.where)

    def __enter__(self) -> FakeHub:
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def _server(self, handler: type[Handler]) -> Server:
        return Server(("127.0.0.1", 0), type(handler.__name__, (handler,), {"hub": self}))


class Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is what is tested here, and no news."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub
    timeout = 30

    def do_GET(self) -> None:
        try:
            self.handle_request()
        except ConnectionError:
            self.close_connection = True

    do_HEAD = do_GET

    def handle_request(self) -> None:
        raise NotImplementedError

    def met(self, where: str) -> Fault | None:
        """The fault for this request; None when it has answered already."""
        sent = self.headers.get("Authorization", "").removeprefix("Bearer ") or None
        fault = self.hub.note(Request(where, self.command, self.path, self.headers.get("Range"), sent))
        time.sleep(fault.wait)
        if fault.status is None:
            return fault
        self.answer(fault.status, fault.body or b'{"error": "fake"}', fault.headers)
        return None

    def answer(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status: int, code: str | None, message: str) -> None:
        headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
        self.answer(status, json.dumps({"error": message}).encode(), headers)

    def send_file(self, data: bytes, fault: Fault, headers: Mapping[str, str]) -> None:
        data = fault.body if fault.body is not None else data
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        status, start, stop = 200, 0, len(data)
        extra = {"Accept-Ranges": "bytes", **headers}
        if wanted and not fault.ignore_range:
            start = int(wanted.group(1))
            stop = min(len(data), int(wanted.group(2)) + 1 if wanted.group(2) else len(data))
            if start >= len(data):
                self.answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
                return
            status = 206
            extra["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        self.send_response(status)
        if fault.undeclared:
            self.close_connection = True
            extra["Connection"] = "close"
        else:
            extra["Content-Length"] = str(fault.declared if fault.declared is not None else stop - start)
        for name, value in extra.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault.drop_after is not None:
            stop = min(stop, start + fault.drop_after)
            self.close_connection = True
        block = SMALL_BLOCK if fault.slow else 1 << 20
        for at in range(start, stop, block):
            self.wfile.write(data[at : min(stop, at + block)])
            self.wfile.flush()
            self.hub.n_sent += min(stop, at + block) - at
            time.sleep(fault.slow)

    def log_message(self, format: str, *args: object) -> None:
        pass


class HubHandler(Handler):
    def handle_request(self) -> None:
        url = urlsplit(self.path)
        path, query = unquote(url.path), parse_qs(url.query)
        resolve = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        cached = re.fullmatch(r"/api/resolve-cache/models/([^/]+/[^/]+)/([^/]+)/(.+)", path)
        tree = re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)", path)
        info = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?", path)
        fault = self.met("resolve" if resolve or cached else "api")
        if fault is None:
            return
        if resolve:
            self.resolve(*resolve.groups())
        elif cached:
            self.small_file(fault, *cached.groups())
        elif path == "/api/models":
            if self.is_token_valid():
                self.search(query)
        elif tree and (repo := self.readable(tree.group(1), tree.group(2))):
            self.answer_json([self.tree_entry(repo, file) for file in sorted(repo.files)])
        elif info and (repo := self.readable(info.group(1), info.group(2))):
            self.answer_json(self.info(info.group(1), repo, blobs="blobs" in query))
        elif not tree and not info:
            self.refuse(404, None, "Sorry, we can't find the page you are looking for.")

    def answer_json(self, data: object) -> None:
        self.answer(200, json.dumps(data).encode(), {"Content-Type": "application/json; charset=utf-8"})

    def token(self) -> str | None:
        return self.headers.get("Authorization", "").removeprefix("Bearer ") or None

    def is_token_valid(self) -> bool:
        """Whether the request may go on; it is refused otherwise."""
        if self.token() in (None, GOOD_TOKEN, POOR_TOKEN):
            return True
        self.refuse(401, None, "Invalid credentials in Authorization header")
        return False

    def readable(self, name: str, revision: str | None = None) -> Repo | None:
        """The repository; None after a refusal. Without a token the hub does not tell whether one exists."""
        token, repo = self.token(), self.hub.repos.get(name)
        if not self.is_token_valid():
            return None
        if repo is None or (repo.private and token != GOOD_TOKEN):
            if token is None:
                self.refuse(401, None, "Invalid username or password.")
            else:
                self.refuse(404, "RepoNotFound", "Repository not found")
            return None
        if revision not in (None, "main", repo.commit):
            self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return None
        return repo

    def info(self, name: str, repo: Repo, *, blobs: bool) -> dict[str, object]:
        return {
            "_id": "0",
            "id": name,
            "modelId": name,
            "author": name.partition("/")[0],
            "sha": repo.commit,
            "private": repo.private,
            "gated": "manual" if repo.gated else False,
            "disabled": False,
            "downloads": repo.downloads,
            "likes": 0,
            "tags": ["gguf"],
            "lastModified": "2026-01-02T03:04:05.000Z",
            "createdAt": "2026-01-02T03:04:05.000Z",
            "siblings": [self.sibling(repo, path) if blobs else {"rfilename": path} for path in sorted(repo.files)],
        }

    def sibling(self, repo: Repo, path: str) -> dict[str, object]:
        data = repo.files[path]
        size = repo.sizes.get(path, len(data))
        entry: dict[str, object] = {"rfilename": path, "size": size, "blobId": git_oid(data)}
        if repo.large:
            sha256 = repo.checksum if repo.checksum is not None else hashlib.sha256(data).hexdigest()
            entry["lfs"] = {"sha256": sha256, "size": size, "pointerSize": 130}
        return entry

    def tree_entry(self, repo: Repo, path: str) -> dict[str, object]:
        data = repo.files[path]
        entry: dict[str, object] = {"type": "file", "path": path, "size": len(data), "oid": git_oid(data)}
        if repo.large:
            entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
        return entry

    def search(self, query: Mapping[str, list[str]]) -> None:
        words = query.get("search", [""])[0].lower().split()
        found = [(name, repo) for name, repo in self.hub.repos.items() if all(word in name.lower() for word in words)]
        if "gguf" in query.get("filter", []):
            found = [(n, r) for n, r in found if any(path.endswith(".gguf") for path in r.files)]
        found = [(n, r) for n, r in found if not r.private or self.token() == GOOD_TOKEN]
        if query.get("sort") == ["downloads"]:
            found.sort(key=lambda pair: -pair[1].downloads)
        limit = int(query.get("limit", ["1000"])[0])
        brief = [self.info(name, repo, blobs=False) for name, repo in found[:limit]]
        self.answer_json([{key: value for key, value in one.items() if key != "siblings"} for one in brief])

    def resolve(self, name: str, revision: str, path: str) -> None:
        repo = self.readable(name, revision)
        if repo is None:
            return
        if repo.gated and self.token() != GOOD_TOKEN:
            message = f"Access to model {name} is restricted."
            self.refuse(401 if self.token() is None else 403, "GatedRepo", message)
            return
        if path not in repo.files:
            self.refuse(404, "EntryNotFound", "Entry not found")
            return
        data = repo.files[path]
        common = {"X-Repo-Commit": repo.commit, "X-Linked-Size": str(len(data))}
        if repo.large:
            digest = hashlib.sha256(data).hexdigest()
            location = f"{self.hub.store_url}/{quote(name)}/{digest}?Signature=fake&Expires={time.time() + 60:.0f}"
            linked = {"X-Linked-Etag": f'"{digest}"', "X-Xet-Hash": digest, "Location": location}
            self.answer(302, b"", common | linked)
        else:
            location = f"/api/resolve-cache/models/{quote(name)}/{repo.commit}/{quote(path)}"
            self.answer(307, b"", common | {"X-Linked-Etag": f'"{git_oid(data)}"', "Location": location})

    def small_file(self, fault: Fault, name: str, revision: str, path: str) -> None:
        repo = self.readable(name, revision)
        if repo is not None:
            data = repo.files[path]
            self.send_file(data, fault, {"ETag": f'"{git_oid(data)}"', "X-Repo-Commit": repo.commit})


class StoreHandler(Handler):
    def handle_request(self) -> None:
        fault = self.met("store")
        if fault is None:
            return
        url = urlsplit(self.path)
        if self.headers.get("Authorization"):
            self.answer(400, b"<Error>Only one auth mechanism allowed</Error>")
            return
        expires = parse_qs(url.query).get("Expires", ["0"])[0]
        if float(expires) < time.time():
            self.answer(403, b"<Error>Request has expired</Error>")
            return
        name, _, digest = unquote(url.path).strip("/").rpartition("/")
        for data in self.hub.repos[name].files.values():
            if hashlib.sha256(data).hexdigest() == digest:
                self.send_file(data, fault, {"ETag": f'"{digest}"'})
                return
        self.answer(404)
