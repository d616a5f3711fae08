"""A conversation goes from one server to another: its state arrives whole, is verified, and is used there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from cache_server import CacheServer, Serve, Tokens, toy
from click.testing import CliRunner
from helpers import wait_until

from pyrun.cache.handover import FilePlace, Head, InterruptedTransferError, ServerPlace, Wanted, hand_over
from pyrun.cli.cache import cache_group
from pyrun.errors import UserError
from toys.corpus import TEXT

pytestmark = pytest.mark.server

FLAGS = ("--parallel", "1", "--ctx-size", "4096", "--cache-ssd-page-size", "32")
LINES = TEXT.splitlines()


@pytest.fixture(params=["dense", "hybrid-mamba"])
def pair(request: pytest.FixtureRequest, serve: Serve, tmp_path: Path) -> tuple[CacheServer, CacheServer]:
    """Two servers of one model, each with a disk of its own."""
    model = toy(request.param)
    return serve(model, *FLAGS, cache=tmp_path / "a"), serve(model, *FLAGS, cache=tmp_path / "b", api_key="sesame")


def talk(server: CacheServer, user: str = "") -> tuple[str, Tokens]:
    """A conversation of two turns. Gives its hash, and its tokens with a third question."""
    options: dict[str, Any] = {"llama_conversation_id": "a flight"} | ({"llama_user_id": user} if user else {})
    tokens = server.tokens(" ".join(LINES[:12]))
    for line in LINES[12:14]:
        tokens += list(server.complete(tokens, 8, **options).tokens) + server.tokens(line)
    tokens += server.complete(tokens, 8, **options).tokens
    server.flush()
    (found,) = server.get(f"/cache/conversations?user_id={user}")["conversations"]
    return found["hash"], tokens + server.tokens(LINES[14])


def place(server: CacheServer, name: str, user: str = "") -> ServerPlace:
    return ServerPlace(server.url, name, user, server.api_key)


def quiet(done: int, total: int) -> None:
    pass


def no_pause(seconds: float) -> None:
    pass


def stream(server: CacheServer, name: str) -> bytes:
    answer = server.request("GET", f"/cache/conversations/{name}/state")
    assert answer.status_code == 200, answer.text
    return answer.content


def post(server: CacheServer, name: str, body: bytes, query: str = "") -> requests.Response:
    headers = {"Authorization": f"Bearer {server.api_key}"} if server.api_key else {}
    return requests.post(
        f"{server.url}/cache/conversations/{name}/state{query}", data=body, headers=headers, timeout=60
    )


def test_a_conversation_goes_on_where_it_was_pushed_to(pair: tuple[CacheServer, CacheServer]) -> None:
    here, there = pair
    name, longer = talk(here)
    run = CliRunner().invoke(
        cache_group,
        ["push", name[:6], "--to", there.url, "--url", here.url],
        env={"LLAMA_PEER_API_KEY": "sesame", "LLAMA_API_KEY": ""},
        catch_exceptions=False,
    )
    assert run.exit_code == 0, run.output
    assert name in run.output
    (listed,) = there.conversations()
    assert (listed["hash"], listed["tokens"]) == (name, here.conversations()[0]["tokens"])
    expected, got = here.complete(longer), there.complete(longer)
    assert got.said == expected.said
    assert got.reused == expected.reused == listed["tokens"]
    assert got.source != "none"


def test_a_conversation_waits_in_a_folder_and_outlives_both_servers(serve: Serve, tmp_path: Path) -> None:
    here = serve(toy("dense"), *FLAGS, cache=tmp_path / "a")
    name, longer = talk(here, "alice")
    words = ["--user", "alice"]
    env = {"LLAMA_API_KEY": ""}
    stick = tmp_path / "stick"
    pushed = CliRunner().invoke(cache_group, ["push", name, "--to", str(stick), "--url", here.url, *words], env=env)
    assert pushed.exit_code == 0, pushed.output
    (file,) = stick.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    expected = here.complete(longer, llama_user_id="alice")
    here.stop()
    there = serve(toy("dense"), *FLAGS, cache=tmp_path / "b")
    pulled = CliRunner().invoke(cache_group, ["pull", name, "--from", str(stick), "--url", there.url, *words], env=env)
    assert pulled.exit_code == 0, pulled.output
    there.stop()
    there = serve(toy("dense"), *FLAGS, cache=tmp_path / "b")
    assert there.conversations() == []
    got = there.complete(longer, llama_user_id="alice")
    assert got.said == expected.said
    assert got.reused == expected.reused
    assert there.complete(longer).reused == 0, "another user has found it"


class Cut:
    """A source whose connection breaks again and again."""

    def __init__(self, of: ServerPlace, every: int) -> None:
        self.of, self.every, self.breaks = of, every, 0

    def head(self) -> Head:
        return self.of.head()

    def chunks(self, head: Head, offset: int) -> Iterator[bytes]:
        passed = 0
        for chunk in self.of.chunks(head, offset):
            if passed + len(chunk) > self.every:
                yield chunk[: self.every - passed]
                self.breaks += 1
                raise InterruptedTransferError("the cable was pulled")
            passed += len(chunk)
            yield chunk


def test_an_interrupted_handover_goes_on_and_sends_nothing_twice(serve: Serve, tmp_path: Path) -> None:
    here = serve(toy("dense"), *FLAGS, cache=tmp_path / "a")
    name, longer = talk(here)
    there = serve(toy("dense"), *FLAGS, cache=tmp_path / "b")
    whole = stream(here, name)
    head = place(here, name).head()
    assert (head.size, head.data) == (len(whole), whole[: len(head.data)])
    # The beginning arrives, in odd pieces, with one that comes twice.
    sink = place(there, name)
    wanted = sink.begin(head)
    assert wanted == Wanted(len(head.data))
    half = len(whole) // 2
    for start in range(wanted.offset, half, 1000):
        piece = whole[start : min(start + 1000, half)]
        assert sink.put(head, start, piece).offset == start + len(piece)
        assert sink.put(head, start, piece).offset == start + len(piece), "told where it goes on"
    assert there.conversations() == []
    # Another stream of the same conversation, or one that nobody began, is not mixed up with it.
    assert post(there, name, b"x", f"?offset={half}&id=0123456789abcdef").json()["offset"] == 0
    assert post(there, "0123456789abcdef", b"x", "?offset=5").json()["offset"] == 0
    hand_over(place(here, name), sink, quiet, no_pause)
    got = there.complete(longer)
    assert got.said == here.complete(longer).said
    written = there.flush()["counters"]["bytes_written"]
    hand_over(place(here, name), sink, quiet, no_pause)
    assert there.flush()["counters"]["bytes_written"] == written, "what is there was written again"


def test_a_pull_into_a_folder_goes_on_where_it_was_cut(serve: Serve, tmp_path: Path) -> None:
    here = serve(toy("dense"), *FLAGS, cache=tmp_path / "a")
    name, _ = talk(here)
    whole = stream(here, name)
    source = Cut(place(here, name), len(whole) // 3)
    file = FilePlace(tmp_path / f"{name}.state")
    hand_over(source, file, quiet, no_pause)
    assert source.breaks >= 2
    assert file.path.read_bytes() == whole
    assert stream(here, name) == whole
    assert here.request("GET", f"/cache/conversations/{name}/state?offset={len(whole) - 7}").content == whole[-7:]


def test_another_fingerprint_is_refused_with_what_differs(serve: Serve, tmp_path: Path) -> None:
    here = serve(toy("dense"), *FLAGS, cache=tmp_path / "a")
    name, _ = talk(here)
    there = serve(toy("dense"), *FLAGS, "--cache-type-k", "q8_0", "-fa", "on", cache=tmp_path / "b")
    with pytest.raises(UserError, match="type_k is f16 there and q8_0 here"):
        hand_over(place(here, name), place(there, name), quiet, no_pause)
    with pytest.raises(UserError, match="another user"):
        hand_over(place(here, name), place(here, name, "bob"), quiet, no_pause)
    assert there.conversations() == []
    there.stop()
    there = serve(toy("moe"), *FLAGS, cache=tmp_path / "c")
    with pytest.raises(UserError, match="weights is [0-9a-f]{32} there and [0-9a-f]{32} here"):
        hand_over(place(here, name), place(there, name), quiet, no_pause)


def test_hostile_bodies_are_refused_and_cost_nothing(serve: Serve, tmp_path: Path) -> None:
    here = serve(toy("dense"), *FLAGS, cache=tmp_path / "a")
    name, longer = talk(here)
    there = serve(toy("dense"), *FLAGS, cache=tmp_path / "b", api_key="sesame")
    whole = stream(here, name)
    expected = there.complete(longer).tokens
    before = there.flush()
    head = int.from_bytes(whole[12:16], "little")
    bodies = [
        b"",
        b"{}",
        os.urandom(4096),
        whole[: head - 1],
        whole[:100],
        whole[:12] + b"\xff\xff\xff\x0f" + whole[16:],
        whole[:16] + b"\xff" * 8 + whole[24:],
        whole[:head] + bytes(len(whole) - head),
        whole[:head] + os.urandom(len(whole) - head),
        whole[: len(whole) - 100] + bytes(100),
    ]
    for body in bodies:
        answer = post(there, name, body)
        assert answer.status_code in (400, 409), (answer.status_code, answer.text, body[:40])
        assert answer.json()["error"]["message"]
    for path in ("nothing", "..%2F..%2Fx", "0" * 15, "g" * 16):
        assert post(there, path, whole).status_code in (400, 404)
    assert post(there, "1" * 16, whole).status_code == 409, "the address names another conversation"
    assert post(there, name, whole, "?offset=-1").status_code == 400
    assert post(there, name, whole, "?user_id=../alice").status_code == 400
    assert post(there, name, whole, "?user_id=alice").status_code == 409
    assert requests.post(f"{there.url}/cache/conversations/{name}/state", data=whole, timeout=60).status_code == 401
    assert requests.get(f"{there.url}/cache/conversations/{name}/state", timeout=60).status_code == 401
    assert here.request("GET", "/cache/conversations/0123456789abcdef/state").status_code == 404
    after = there.flush()
    assert after["state"]["conversations"] == before["state"]["conversations"]
    assert after["damaged"] == before["damaged"]
    assert there.complete(longer).tokens == expected


def test_a_receiver_that_dies_in_between_keeps_what_came_and_asks_for_the_rest(serve: Serve, tmp_path: Path) -> None:
    """The toy's state is one part, so the checkpoint is what goes on from an empty store; a part is begun again."""
    here = serve(toy("dense"), *FLAGS, cache=tmp_path / "a")
    name, longer = talk(here)
    there = serve(toy("dense"), *FLAGS, cache=tmp_path / "b")
    whole, head = stream(here, name), place(here, name).head()
    sink = place(there, name)
    start = sink.begin(head).offset
    assert not sink.put(head, start, whole[start : len(whole) // 2]).is_complete
    there.kill()
    there = serve(toy("dense"), *FLAGS, cache=tmp_path / "b")
    assert there.conversations() == []
    assert place(there, name).put(head, len(whole) // 2, whole[len(whole) // 2 :]).offset == 0, "begin with the head"
    hand_over(place(here, name), place(there, name), quiet, no_pause)
    assert there.complete(longer).said == here.complete(longer).said
    there.kill()
    there = serve(toy("dense"), *FLAGS, cache=tmp_path / "b")
    assert name in {one["hash"] for one in there.conversations()}


def test_a_full_budget_refuses_and_says_so(serve: Serve, tmp_path: Path) -> None:
    here = serve(toy("dense"), *FLAGS, cache=tmp_path / "a")
    name, _ = talk(here)
    there = serve(toy("dense"), *FLAGS, "--cache-ssd-max-size", "40K", cache=tmp_path / "b")
    answer = post(there, name, stream(here, name))
    assert answer.status_code == 507, answer.text
    assert "budget" in answer.json()["error"]["message"]
    assert there.cache()["state"]["disk_bytes"] <= there.cache()["state"]["disk_limit"]


def test_routers_are_told_load_and_what_is_in_ram(serve: Serve, kv: Path) -> None:
    server = serve(toy("dense"), *FLAGS, "--ctx-size", "32768", cache=kv)
    assert server.cache()["load"] == {"slots": 1, "busy": 0, "waiting": 0}
    name, _ = talk(server)
    talk(server, "alice")
    assert [(one["hash"], one["tier"]) for one in server.cache()["in_ram"]] == [(name, "hot")]
    assert [one["hash"] for one in server.get("/cache?user_id=alice")["in_ram"]] == [name]
    assert server.get("/cache?user_id=bob")["in_ram"] == []
    body = {"prompt": "Once", "n_predict": 15000, "ignore_eos": True, "stream": True}
    with server.request("POST", "/completion", body, stream=True):
        wait_until(lambda: server.cache()["load"]["busy"] == 1, 20, "a slot is busy")
