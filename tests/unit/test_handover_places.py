"""Conversations are carried from place to place, and an interruption costs nothing that has arrived."""

from __future__ import annotations

import resource
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pyrun import _kernels
from pyrun.cache.handover import (
    BODY_BYTES,
    BODY_SECONDS,
    FIRST_BODY_BYTES,
    TRIES,
    FilePlace,
    Head,
    InterruptedTransferError,
    ServerPlace,
    Wanted,
    hand_over,
    is_url,
    next_body_bytes,
    place_of,
)
from pyrun.errors import UserError

HEAD_SIZE, SIZE = 200, 300_000


def stream(size: int = SIZE, checksum: int = 7) -> bytes:
    header = struct.pack("<8sHHIQQ", b"LRKVTIER", 1, 5, HEAD_SIZE, size, checksum)
    return (header + bytes(range(256)) * (size // 256 + 1))[:size]


def quiet(done: int, total: int) -> None:
    pass


class Flaky:
    """A source that is cut after so many bytes."""

    def __init__(self, data: bytes, every: int) -> None:
        self.data, self.every, self.read, self.pauses = data, every, 0, 0.0

    def head(self) -> Head:
        return Head.read(iter([self.data[:50], self.data[50:1000]]), "here")

    def chunks(self, head: Head, offset: int) -> Iterator[bytes]:
        for start in range(offset, min(offset + self.every, len(self.data)), 1000):
            piece = self.data[start : min(start + 1000, offset + self.every)]
            self.read += len(piece)
            yield piece
        if offset + self.every < len(self.data):
            raise InterruptedTransferError("cut")

    def pause(self, seconds: float) -> None:
        self.pauses += seconds


@contextmanager
def busy_server(n_refused: int, retry_after: str) -> Iterator[ServerPlace]:
    """A server that has the stream, and is too busy for so many questions."""
    refused = iter(range(n_refused))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_busy = next(refused, None) is not None
            offset = int(self.path.partition("offset=")[2].partition("&")[0] or 0)
            body = b'{"error": {"message": "others are being sent"}}' if is_busy else stream()[offset:]
            self.send_response(503 if is_busy else 200)
            if is_busy and retry_after:
                self.send_header("Retry-After", retry_after)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with suppress(OSError):  # The head alone is read, at first.
                self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield ServerPlace(f"http://127.0.0.1:{server.server_port}", "0123456789abcdef")
        finally:
            server.shutdown()
            thread.join()


def test_a_busy_server_is_asked_again_after_the_time_that_it_names(tmp_path: Path) -> None:
    pauses: list[float] = []
    with busy_server(3, "7") as source:
        hand_over(source, FilePlace(tmp_path / "x.state"), quiet, pauses.append)
    assert (tmp_path / "x.state").read_bytes() == stream()
    assert pauses == [7, 7, 7]


@pytest.mark.parametrize(("retry_after", "longest"), [("", 8), ("soon", 8), ("\xb2", 8), ("99999", 30)])
def test_a_server_that_stays_busy_is_given_up_and_it_is_said(tmp_path: Path, retry_after: str, longest: float) -> None:
    pauses: list[float] = []
    with busy_server(TRIES, retry_after) as source, pytest.raises(UserError, match="is busy: others are being sent"):
        hand_over(source, FilePlace(tmp_path / "x.state"), quiet, pauses.append)
    assert len(pauses) == TRIES - 1
    assert max(pauses) == longest


def test_a_file_arrives_whole_through_cuts_and_nothing_is_read_twice(tmp_path: Path) -> None:
    source, place = Flaky(stream(), 40_000), FilePlace(tmp_path / "x.state")
    head = hand_over(source, place, quiet, source.pause)
    assert (head.size, head.id) == (SIZE, f"{7:016x}")
    assert place.path.read_bytes() == stream()
    assert source.read == SIZE - HEAD_SIZE
    assert [file.name for file in tmp_path.iterdir()] == ["x.state"]
    assert place.head().data == head.data


def test_a_cut_behind_a_whole_body_costs_nothing(tmp_path: Path) -> None:
    source, place = Flaky(stream(), 66_000), FilePlace(tmp_path / "x.state")
    hand_over(source, place, quiet, source.pause)
    assert place.path.read_bytes() == stream()
    assert source.read == SIZE - HEAD_SIZE


def test_a_slow_connection_loses_about_a_second_when_it_is_cut_and_a_fast_one_is_not_held_up() -> None:
    for speed in (20_000, 1_500_000, 100_000_000):  # bytes per second
        size, sizes = FIRST_BODY_BYTES, []
        for _ in range(10):
            sizes.append(size)
            size = next_body_bytes(size, size / speed)
        assert all(size <= max(BODY_SECONDS * speed, FIRST_BODY_BYTES) for size in sizes)
        assert sizes[-1] >= min(BODY_SECONDS * speed / 4, BODY_BYTES)
    assert next_body_bytes(BODY_BYTES, 60.0) == BODY_BYTES // 4, "it has become slower"


def test_what_an_earlier_command_left_is_gone_on_with(tmp_path: Path) -> None:
    place = FilePlace(tmp_path / "x.state")
    part = tmp_path / "x.state.part"
    part.write_bytes(stream()[:123_456])
    source = Flaky(stream(), SIZE)
    hand_over(source, place, quiet, source.pause)
    assert source.read == SIZE - 123_456
    assert place.path.read_bytes() == stream()
    again = Flaky(stream(), SIZE)
    hand_over(again, place, quiet, again.pause)
    assert again.read == 0


def test_what_is_left_of_another_stream_is_begun_anew(tmp_path: Path) -> None:
    place = FilePlace(tmp_path / "x.state")
    (tmp_path / "x.state.part").write_bytes(stream(checksum=8)[:123_456])
    source = Flaky(stream(), SIZE)
    hand_over(source, place, quiet, source.pause)
    assert place.path.read_bytes() == stream()


def test_a_place_that_never_gets_further_is_given_up_with_a_way_on(tmp_path: Path) -> None:
    class Stuck:
        asked = 0

        def begin(self, head: Head) -> Wanted:
            return Wanted(HEAD_SIZE)

        def put(self, head: Head, offset: int, body: bytes) -> Wanted:
            self.asked += 1
            return Wanted(HEAD_SIZE)

    source, sink = Flaky(stream(), SIZE), Stuck()
    with pytest.raises(UserError, match="interrupted at 200 of 300,000 bytes"):
        hand_over(source, sink, quiet, source.pause)
    assert sink.asked == TRIES
    assert source.pauses > 0


@pytest.mark.parametrize("data", [b"", b"GGUF" * 100, stream()[:100], b"LRKVTIER\x01\x00\x01\x00" + bytes(200)])
def test_what_is_no_such_file_is_refused(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "x.state"
    file.write_bytes(data)
    with pytest.raises(UserError, match="no conversation"):
        FilePlace(file).head()


def test_a_file_that_was_cut_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.state"
    file.write_bytes(stream()[:-1])
    with pytest.raises(UserError, match="299,999 bytes and should have 300,000"):
        FilePlace(file).head()


def test_a_place_that_cannot_be_written_is_told_and_gone_on_with_later(tmp_path: Path) -> None:
    """As a stick with FAT32 says it, or a full one."""
    place = FilePlace(tmp_path / "x.state")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    source = Flaky(stream(), SIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limit[1]))
    try:
        with pytest.raises(UserError, match="cannot write .*x.state.part: File too large"):
            hand_over(source, place, quiet, source.pause)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    hand_over(source, place, quiet, source.pause)
    assert place.path.read_bytes() == stream()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write .*file"):
        place_of(str(tmp_path / "file" / "x"), "0123456789abcdef", "", None, make=True)


def test_addresses_and_folders_are_told_apart(tmp_path: Path) -> None:
    assert is_url("http://10.0.0.1:9090")
    assert is_url("10.0.0.1:9090")
    assert not is_url(str(tmp_path))
    assert not is_url("./not-there-yet")
    assert not is_url("~/stick")


def test_a_conversation_is_found_in_a_folder_by_its_first_digits_and_its_user(tmp_path: Path) -> None:
    names = ["0123456789abcdef", "0123ffffffffffff"]
    for name in names:
        (tmp_path / f"{name}.state").touch()
    mine = tmp_path / f"{names[0]}-{_kernels.user_key('alice').hex()}.state"
    mine.touch()
    folder = str(tmp_path)
    assert place_of(folder, "01234", "", None, make=False) == FilePlace(tmp_path / f"{names[0]}.state")
    assert place_of(folder, "0123", "alice", None, make=False) == FilePlace(mine)
    with pytest.raises(UserError, match="any of these"):
        place_of(folder, "0123", "", None, make=False)
    with pytest.raises(UserError, match="has no conversation"):
        place_of(folder, "0123", "bob", None, make=False)
    with pytest.raises(UserError, match="not the hash"):
        place_of(folder, "../../etc", "", None, make=False)
    made = place_of(str(tmp_path / "new"), names[0], "", None, make=True)
    assert made == FilePlace(tmp_path / "new" / f"{names[0]}.state")
    assert place_of("10.0.0.1:9090", names[0], "", "key", make=True) == ServerPlace(
        "http://10.0.0.1:9090", names[0], "", "key"
    )
