"""Hands one conversation from a server or folder to another one, and goes on where it was interrupted.

The bytes are made and checked by servers (docs/formats.md, "Handover"); here they are only carried. A folder holds a
conversation as one file, which is taken in, and checked, when it comes to a server."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import urlencode, urlsplit

from pyrun import _kernels
from pyrun.cache.look import whole_hash
from pyrun.errors import UserError
from pyrun.server.ask import ask, asking, refused_with, server_url
from pyrun.server.served import choose_loaded

if TYPE_CHECKING:
    import requests

MAGIC, KIND = b"LRKVTIER", 5
HEADER_SIZE, MAX_HEAD_SIZE = 144, 1 << 28  # as kernels/kvtier/format.h has them
BODY_BYTES = 16 << 20  # of one request at most: upstream's server takes 100 MB, into memory
FIRST_BODY_BYTES = 64 << 10  # the answer to it says what is there already
BODY_SECONDS = 2.0  # of one request at most, about: what is cut off in the middle of a body is lost
TRIES = 6  # without a byte of progress
PATIENCE_SECONDS = 60
MAX_WAIT_SECONDS = 30  # between two tries, whatever a server asks for
SUFFIX = ".state"

T = TypeVar("T")
Report = Callable[[int, int], None]  # bytes done, bytes in all


@dataclass(frozen=True)
class Head:
    """What a stream begins with."""

    data: bytes
    size: int  # of the whole stream
    id: str

    @classmethod
    def parse(cls, data: bytes, where: str) -> Head:
        head = cls(data, int.from_bytes(data[16:24], "little"), f"{int.from_bytes(data[24:32], 'little'):016x}")
        if len(data) < HEADER_SIZE or data[:8] != MAGIC or int.from_bytes(data[10:12], "little") != KIND:
            raise UserError(f"{where} has no conversation that was handed over", "give a file of `cache push`")
        return head

    @classmethod
    def read(cls, chunks: Iterator[bytes], where: str) -> Head:
        """From the beginning of a stream, however it is cut."""
        data = b""
        wanted = HEADER_SIZE
        for chunk in chunks:
            data += chunk
            if len(data) >= HEADER_SIZE:
                wanted = min(int.from_bytes(data[12:16], "little"), MAX_HEAD_SIZE)
            if len(data) >= wanted >= HEADER_SIZE:
                break
        return cls.parse(data[:wanted], where)


@dataclass(frozen=True)
class Wanted:
    offset: int
    is_complete: bool = False


class InterruptedTransferError(Exception):
    """It may go on after a moment."""

    wait = 0.0  # seconds, at least


class BusyServerError(InterruptedTransferError):
    """The server, or a router before it, cannot answer now, and may say for how long."""

    def __init__(self, url: str, answer: requests.Response) -> None:
        super().__init__(f"{url} is busy: {_message(answer) or 'it says no more'}")
        value = answer.headers.get("Retry-After", "")
        self.wait = min(float(value), MAX_WAIT_SECONDS) if value.isdecimal() else 0.0


class Source(Protocol):
    def head(self) -> Head: ...

    def chunks(self, head: Head, offset: int) -> Iterator[bytes]: ...


class Sink(Protocol):
    def begin(self, head: Head) -> Wanted: ...

    def put(self, head: Head, offset: int, body: bytes) -> Wanted: ...


@dataclass(frozen=True)
class ServerPlace:
    url: str
    conversation: str
    user: str = ""
    key: str | None = None
    model: str | None = None  # as for `ask`

    @contextmanager
    def _asked(self, method: str, query: dict[str, Any], body: bytes | None = None) -> Iterator[requests.Response]:
        import requests

        query |= {"user_id": self.user} if self.user else {}
        query |= {"model": self.model} if self.model else {}
        asked = urlencode(query)
        headers = {"Content-Type": "application/octet-stream"} if body is not None else {}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        address = f"{self.url.rstrip('/')}/cache/conversations/{self.conversation}/state?{asked}"
        options: dict[str, Any] = {"data": body, "headers": headers, "stream": True, "timeout": PATIENCE_SECONDS}
        try:
            with asking(self.url, verify=True) as session, session.request(method, address, **options) as answer:
                if answer.status_code == 503:
                    raise BusyServerError(self.url, answer)
                yield answer
        except requests.RequestException as error:
            raise InterruptedTransferError(f"{self.url}: {error}") from error

    def head(self) -> Head:
        with self._asked("GET", {}) as answer:
            _refuse(answer, self.url)
            return Head.read(answer.iter_content(FIRST_BODY_BYTES), self.url)

    def chunks(self, head: Head, offset: int) -> Iterator[bytes]:
        with self._asked("GET", {"offset": offset, "id": head.id}) as answer:
            if answer.status_code == 409:
                raise UserError(
                    f"the conversation at {self.url} went on meanwhile", "give the command again: only the rest is sent"
                )
            _refuse(answer, self.url)
            yield from answer.iter_content(FIRST_BODY_BYTES)

    def begin(self, head: Head) -> Wanted:
        return self.put(head, 0, head.data)

    def put(self, head: Head, offset: int, body: bytes) -> Wanted:
        with self._asked("POST", {"offset": offset, "id": head.id}, body) as answer:
            told = _told(answer)
            if answer.status_code == 409 and isinstance(told.get("offset"), int):
                return Wanted(told["offset"])
            _refuse(answer, self.url)
            return Wanted(int(told["offset"]), bool(told["complete"]))


@dataclass(frozen=True)
class FilePlace:
    path: Path

    def head(self) -> Head:
        try:
            head = Head.read(self._read(0), str(self.path))
            size = self.path.stat().st_size
        except OSError as error:
            raise UserError(f"{self.path} cannot be read: {error.strerror}") from error
        if size != head.size:
            raise UserError(f"{self.path} has {size:,} bytes and should have {head.size:,}", "push it there again")
        return head

    def _read(self, offset: int) -> Iterator[bytes]:
        try:
            with self.path.open("rb") as file:
                file.seek(offset)
                while chunk := file.read(FIRST_BODY_BYTES):
                    yield chunk
        except OSError as error:
            raise UserError(f"{self.path} cannot be read: {error.strerror or error}") from error

    def chunks(self, head: Head, offset: int) -> Iterator[bytes]:
        return self._read(offset)

    @property
    def _part(self) -> Path:
        return self.path.with_name(self.path.name + ".part")

    def begin(self, head: Head) -> Wanted:
        """What an interrupted command left is gone on with, if it is of the same stream."""
        if _begins_with(self.path, head.data) and self.path.stat().st_size == head.size:
            return Wanted(head.size, is_complete=True)
        if _begins_with(self._part, head.data) and (size := self._part.stat().st_size) < head.size:
            return Wanted(size)
        with _writing(self._part):
            self._part.unlink(missing_ok=True)
        return self.put(head, 0, head.data)

    def put(self, head: Head, offset: int, body: bytes) -> Wanted:
        end = offset + len(body)
        with _writing(self._part):
            file = os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
            with os.fdopen(file, "ab") as part:
                part.truncate(offset)
                part.write(body)
                part.flush()
                os.fsync(part.fileno())
            if end >= head.size:
                self._part.replace(self.path)
        return Wanted(end, is_complete=end >= head.size)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """A stick may be full, or have a file system that ends at 4 GiB."""
    try:
        yield
    except OSError as error:
        hint = "check its room, who may write there, and whether it takes so large a file; what has arrived stays"
        raise UserError(f"cannot write {path}: {error.strerror or error}", hint) from error


def _begins_with(path: Path, data: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(data)) == data
    except OSError:
        return False


def _told(answer: requests.Response) -> dict[str, Any]:
    try:
        told = answer.json()
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _message(answer: requests.Response) -> str:
    error = _told(answer).get("error")
    return str(error.get("message", "")) if isinstance(error, dict) else ""


def _refuse(answer: requests.Response, url: str) -> None:
    if answer.status_code not in (200, 401) and (message := _message(answer)):
        raise UserError(f"{url} refuses: {message}")
    refused_with(answer, url, "/cache/conversations")


def hand_over(source: Source, sink: Sink, report: Report, pause: Callable[[float], None] = time.sleep) -> Head:
    """Carries the stream until the sink has all of it. What the sink has already is not read."""
    head = _patiently(source.head, pause)
    wanted = _patiently(lambda: sink.begin(head), pause)
    furthest, failures = wanted.offset, 0
    while not wanted.is_complete:
        report(wanted.offset, head.size)
        try:
            wanted = sink.begin(head) if wanted.offset == 0 else _carry(source, sink, head, wanted, report)
            failure, wait = f"it goes on at byte {wanted.offset:,} again and again", 0.0
        except InterruptedTransferError as error:
            failure, wait = str(error), error.wait
        failures = 0 if wanted.offset > furthest or wanted.is_complete else failures + 1
        furthest = max(furthest, wanted.offset)
        if failures >= TRIES:
            raise UserError(
                f"interrupted at {furthest:,} of {head.size:,} bytes: {failure}",
                "give the command again: what has arrived is not sent again",
            )
        if failures:
            pause(max(wait, 2.0**failures / 2))
    report(head.size, head.size)
    return head


def _patiently(work: Callable[[], T], pause: Callable[[float], None]) -> T:
    for attempt in range(1, TRIES + 1):
        try:
            return work()
        except InterruptedTransferError as error:
            if attempt == TRIES and isinstance(error, BusyServerError):
                raise UserError(str(error), "give the command again in a while") from error
            if attempt == TRIES:
                raise UserError(f"no server answers: {error}", "start one with `llama-run --server`") from error
            pause(max(error.wait, 2.0**attempt / 4))
    raise AssertionError


def next_body_bytes(size: int, seconds: float) -> int:
    """How large the next body should be, after one of this size that took so long."""
    if seconds > BODY_SECONDS:
        return max(size // 4, FIRST_BODY_BYTES)
    return min(size * 4, BODY_BYTES) if seconds < BODY_SECONDS / 4 else size


def _carry(source: Source, sink: Sink, head: Head, wanted: Wanted, report: Report) -> Wanted:
    """Carries from one offset on, until the sink wants another one or the stream is cut."""
    start, body = wanted, bytearray()
    enough, began = FIRST_BODY_BYTES, time.monotonic()
    try:
        for chunk in source.chunks(head, wanted.offset):
            body += chunk
            if len(body) < enough and wanted.offset + len(body) < head.size:
                continue
            expected, sent = wanted.offset + len(body), bytes(body)
            body.clear()
            wanted = sink.put(head, wanted.offset, sent)
            enough, began = next_body_bytes(enough, time.monotonic() - began), time.monotonic()
            report(wanted.offset, head.size)
            if wanted.is_complete or wanted.offset != expected:
                return wanted
    except InterruptedTransferError:
        if not body and wanted == start:  # What came before the cut is worth something.
            raise
    return sink.put(head, wanted.offset, bytes(body)) if body else wanted


def is_url(place: str) -> bool:
    """A folder is one that is there, or is written as a path."""
    if "://" in place:
        return True
    return not (Path(place).is_dir() or place.startswith((".", "/", "~")))


def place_of(
    place: str, wanted: str, user: str, key: str | None, *, make: bool, model: str | None = None
) -> ServerPlace | FilePlace:
    """Where a conversation is, by the first digits of its hash; with make, where it is to go, by its whole hash.
    `model` is for a server of several: the name of one that is loaded, or a part of it."""
    if is_url(place):
        url = server_url(place)
        if not urlsplit(url).hostname:
            raise UserError(f"{place} is neither a server's address nor a folder", "write a folder as ./NAME")
        routed = choose_loaded(url, key, model).routed_name if model else None
        if make:
            return ServerPlace(url, wanted, user, key, routed)
        asked = "/cache/conversations" + (f"?{urlencode({'user_id': user})}" if user else "")
        stored = [one["hash"] for one in ask(url, asked, key, model=routed)["conversations"]]
        name = whole_hash(wanted, stored)
        if name is None:
            raise UserError(f"{url} has no conversation {wanted}", f"`llama-run cache ls --url {url}` shows them")
        return ServerPlace(url, name, user, key, routed)
    folder = Path(place).expanduser()
    end = (f"-{_kernels.user_key(user).hex()}" if user else "") + SUFFIX
    if make:
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        return FilePlace(folder / (wanted + end))
    stored = [file.name.removesuffix(end) for file in folder.glob(f"*{end}") if len(file.name) == 16 + len(end)]
    name = whole_hash(wanted, stored)
    if name is None:
        raise UserError(f"{folder} has no conversation {wanted}", "`llama-run cache push HASH --to DIR` puts one there")
    return FilePlace(folder / (name + end))
