"""Several users on one server: what is theirs stays theirs, and none takes all places."""

from __future__ import annotations

import json
import random
import re
import threading
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests
from cache_server import Answer, CacheServer, Serve, Tokens, say, toy
from helpers import wait_until

import toys
from pyrun import _kernels
from toys.corpus import TEXT

pytestmark = pytest.mark.server

LINES = TEXT.splitlines()[:18]
USERS = ("ann", "ben", "cleo", "dan", "eve")
SLOTS = ("--parallel", "4", "--ctx-size", "8192")


def user_key(user: str) -> str:
    return _kernels.user_key(user).hex()


def folders_of(kv: Path, user: str) -> list[Path]:
    """The user's folders, one for each model."""
    return list(kv.glob(f"*/u/{user_key(user)}"))


def common(a: Tokens, b: Tokens) -> int:
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


# Isolation


@pytest.mark.parametrize("name", toys.MODELS)
def test_user_gets_no_state_of_another(serve: Serve, kv: Path, name: str) -> None:
    prompt = "\n".join(LINES[:7])
    one_slot = "--parallel", "1", "--ctx-size", "4096"

    def reuses_all(answer: Answer) -> bool:
        return answer.reused >= answer.prompt_size - 4 and answer.text == first.text

    server = serve(toy(name), *one_slot, cache=kv)
    first = server.complete(prompt, llama_user_id="ann")
    assert first.reused == 0
    server.flush()
    assert reuses_all(server.complete(prompt, llama_user_id="ann"))
    for stranger in "ben", "":
        answer = server.complete(prompt, llama_user_id=stranger)
        assert (answer.reused, answer.source, answer.text) == (0, "none", first.text)
    server.flush()
    answer = server.complete(prompt, llama_user_id="ann")
    assert reuses_all(answer) and answer.source == "hot", "the slot holds what another user asked last"
    server.stop()

    server = serve(toy(name), *one_slot, cache=kv)
    assert server.complete(prompt, llama_user_id="cleo").reused == 0
    answer = server.complete(prompt, llama_user_id="ann")
    assert reuses_all(answer) and answer.source == "cold"


class Customer:
    """A user who asks about texts that all users share, goes on with old talks, and remembers all that was said."""

    def __init__(self, name: str, texts: list[Tokens]) -> None:
        self.name = name
        self.random = random.Random(name)
        self.texts = texts
        self.said: list[Tokens] = []
        self.answers: list[Answer] = []

    def ask(self, server: CacheServer) -> None:
        old = self.random.choice(self.said) if self.said and self.random.random() < 0.5 else []
        prompt = (old or self.random.choice(self.texts)) + self.random.choice(self.texts)[:20]
        prompt = prompt[-1000:] if len(prompt) > 1000 else prompt
        answer = server.complete(prompt, n_predict=2, llama_user_id=self.name)
        own = max((common(prompt, talk) for talk in self.said), default=0)
        assert answer.reused <= own, (
            f"{self.name} reused {answer.reused} tokens, of which {own} were ever {self.name}'s"
        )
        self.said.append([*prompt, *answer.tokens])
        self.answers.append(answer)


def wait_for_log(server: CacheServer, n_requests: int) -> None:
    """It is written by a thread of its own, which a kill would end."""
    wait_until(lambda: server.said().count("stop processing: n_tokens") >= n_requests, 30, "the log is written")


def test_500_requests_and_crashes_cross_no_users(serve: Serve, kv: Path) -> None:
    rounds, requests_each = 5, 20
    keys: dict[str, set[str]] = defaultdict(set)
    customers: list[Customer] = []
    for _ in range(rounds):
        server = serve(toy("dense"), *SLOTS, "--log-verbosity", "4", "--cache-ssd-page-size", "32", cache=kv)
        if not customers:
            texts = [server.tokens("\n".join(LINES[n : n + 4])) for n in range(0, 12, 3)]
            customers = [Customer(user, texts) for user in USERS]
        before = len(customers[0].answers)

        def ask_all(customer: Customer, server: CacheServer = server) -> None:
            for _ in range(requests_each):
                customer.ask(server)

        with ThreadPoolExecutor(len(USERS)) as clients:
            list(clients.map(ask_all, customers))
        wait_for_log(server, len(USERS) * requests_each)
        server.kill()

        restored: Counter[str] = Counter()
        for name_space, names in re.findall(r"tokens of name space ([0-9a-f]+):([ 0-9a-f]*)", server.said()):
            restored[name_space] += 1
            keys[name_space].update(names.split())
        for customer in customers:
            hits = sum(answer.source in ("hot", "warm", "cold") for answer in customer.answers[before:])
            assert restored.pop(user_key(customer.name), 0) == hits
        assert not restored, "state of a name space that nobody asked for"
    assert sum(len(customer.answers) for customer in customers) == 500
    assert set(keys) == {user_key(user) for user in USERS}
    for mine, theirs in ((a, b) for a in keys for b in keys if a < b):
        assert not keys[mine] & keys[theirs]

    # One after the other is wiped, while the others keep what they have.
    server = serve(toy("dense"), *SLOTS, "--cache-ssd-page-size", "32", cache=kv)
    for number, customer in enumerate(customers):
        prompt = customer.said[-1]
        assert server.complete(prompt, llama_user_id=customer.name).reused > 0
        server.flush()
        assert folders_of(kv, customer.name)
        assert server.request("DELETE", f"/cache/users/{customer.name}").status_code == 200
        assert not folders_of(kv, customer.name)
        assert server.get(f"/cache/conversations?user_id={customer.name}")["conversations"] == []
        assert [len(folders_of(kv, user)) for user in USERS] == [0] * (number + 1) + [1] * (len(USERS) - number - 1)
        assert server.complete(prompt, n_predict=1, cache_prompt=True, llama_user_id=customer.name).reused == 0
        assert server.request("DELETE", f"/cache/users/{customer.name}").status_code == 200
    server.stop()
    left = [path for path in kv.rglob("*") if path.is_file() and path.name not in ("lock", "owner")]
    assert all("u" not in path.relative_to(kv).parts for path in left), left
    assert not [path for path in left if path.suffix in (".seg", ".anc")], "nothing was stored for anybody else"


# Ids

IDS = {
    "empty": ("", True),
    "all kinds of characters": ("aZ09_-", True),
    "512": ("a" * 512, True),
    "513": ("a" * 513, False),
    "path": ("../../etc", False),
    "nul": ("a\0b", False),
    "newline": ("ann\n", False),
    "emoji": ("🦙", False),
    "sql": ("'; DROP TABLE users; --", False),
    "space": ("ann lee", False),
    "very long json": ('{"a": ' * 100_000, False),
    "number": (5, False),
    "list": (["ann"], False),
    "object": ({"id": "ann"}, False),
}
ROUTES: dict[str, dict[str, Any]] = {
    "/completion": {"prompt": "Hello", "n_predict": 1},
    "/v1/completions": {"prompt": "Hello", "max_tokens": 1},
    "/v1/chat/completions": {"messages": [say("user", "Hello")], "max_tokens": 1},
    "/v1/responses": {"input": "Hello", "max_output_tokens": 1},
    "/v1/messages": {"messages": [say("user", "Hello")], "max_tokens": 1},
}


def test_only_ids_that_break_the_rule_are_refused(serve: Serve, kv: Path) -> None:
    server = serve(toy("dense"), *SLOTS, cache=kv)
    for route, body in ROUTES.items():
        for name, (user, is_valid) in IDS.items():
            answer = server.request("POST", route, body | {"llama_user_id": user})
            assert answer.status_code == (200 if is_valid else 400), f"{route}, {name}: {answer.text[:300]}"
            if not is_valid:
                message = answer.json()["error"]["message"]
                assert "llama_user_id" in message and "512" in message and len(message) < 1000, (
                    f"{route}, {name}: {message[:300]}"
                )
    server.flush()
    names = {part for path in kv.rglob("*") for part in path.relative_to(kv).parts}
    assert all(re.fullmatch(r"[0-9a-z.-]{1,64}", name) for name in names - {"CACHEDIR.TAG"}), names
    users = {path.name for path in kv.glob("*/u/*")}
    assert users <= {user_key(str(user)) for user, is_valid in IDS.values() if is_valid}


# Who is meant

DEVICE = "0123456789abcdef" * 4


def claude(device: str = DEVICE, account: str = "", session: str = "00000000-1111-4222-8333-444444444444") -> str:
    return json.dumps({"device_id": device, "account_uuid": account, "session_id": session})


def old_claude(device: str = DEVICE, account: str = "", session: str = "55555555-6666-4777-8888-999999999999") -> str:
    return f"user_{device}_account_{account}_session_{session}"


def named(user_id: object, **fields: object) -> dict[str, Any]:
    return {"metadata": {"user_id": user_id}} | fields


# Requests of one user share, those of different ones do not. Each line: what a client sends, and whose it is.
MEANT: list[tuple[str, dict[str, Any], dict[str, str], str]] = [
    ("/v1/messages", named(claude()), {}, "device"),
    ("/v1/messages", named(claude(session="another")), {}, "device"),
    ("/v1/messages", named(old_claude()), {}, "device"),
    ("/v1/messages", named(claude(account="4bec")), {}, "account"),
    ("/v1/messages", named(old_claude(account="4bec", session="third")), {}, "account"),
    ("/v1/messages", named(claude(device="0" * 64)), {}, "other device"),
    ("/v1/messages", named("ann@example.org"), {}, "mail"),
    ("/v1/messages", named("ann lee \0 🦙" * 500), {}, "any text"),
    ("/v1/messages", named('{"device_id": ' * 1000), {}, "broken JSON"),
    ("/v1/messages", named(5), {}, "a number"),
    ("/v1/messages", named({"id": "ann"}), {}, "an object"),
    ("/v1/messages", named("ann"), {}, "ann"),
    ("/v1/messages", {"llama_user_id": "ann"}, {}, "ann"),
    ("/v1/messages", named("ben", llama_user_id="ann"), {}, "ann"),
    ("/v1/messages", named("ben", llama_user_id=""), {}, "ben"),
    ("/v1/messages", {"__metadata_user_id": "ann"}, {}, "anonymous"),
    ("/v1/messages", named(None, __metadata_user_id="ann"), {}, "anonymous"),
    ("/v1/messages", named("ben", __metadata_user_id="ann"), {}, "ben"),
    ("/v1/messages", {"metadata": None}, {}, "anonymous"),
    ("/v1/chat/completions", {"llama_user_id": "ben", "__metadata_user_id": "ann"}, {}, "ben"),
    ("/v1/chat/completions", {"__metadata_user_id": "ann"}, {}, "anonymous"),
    ("/v1/chat/completions", named("ann"), {}, "anonymous"),
    ("/v1/responses", {"llama_user_id": "ben", "__metadata_user_id": "ann"}, {}, "ben"),
    ("/v1/chat/completions", {}, {"X-Llama-User": "ann"}, "anonymous"),
]


def whose(server: CacheServer, number: int, route: str, body: dict[str, Any], headers: dict[str, str]) -> str:
    """The name space that the request's state was stored in; empty: the anonymous one."""
    before = stored_for(server)
    words = f"{LINES[number % 18]} {number} {number * 7919}"
    text: dict[str, Any] = {"input": words} if route == "/v1/responses" else {"messages": [say("user", words)]}
    answer = requests.post(server.url + route, json=text | {"max_tokens": 1} | body, headers=headers, timeout=60)
    assert answer.status_code == 200, f"{route} {str(body)[:200]}: {answer.text[:300]}"
    server.flush()
    grown = [user for user, count in stored_for(server).items() if count > before.get(user, 0)]
    assert len(grown) == 1, grown
    return grown[0]


def stored_for(server: CacheServer) -> dict[str, int]:
    root = Path(server.cache()["path"])
    names = {path.name: len(list(path.glob("*/*"))) for path in root.glob("*/u/*")}
    return names | {"": len([path for path in root.glob("*/*/*") if "u" not in path.relative_to(root).parts])}


def test_users_are_who_the_table_says(serve: Serve, kv: Path) -> None:
    server = serve(toy("dense"), "--parallel", "1", "--ctx-size", "4096", cache=kv)
    seen: dict[str, str] = {"anonymous": "", "ann": user_key("ann"), "ben": user_key("ben")}
    for number, (route, body, headers, meant) in enumerate(MEANT):
        folder = whose(server, number, route, body, headers)
        assert seen.setdefault(meant, folder) == folder, f"{route} {str(body)[:200]}: not {meant}"
    assert len(set(seen.values())) == len(seen), "two of them share"


def test_metadata_separates_nobody_when_told_so(serve: Serve, kv: Path) -> None:
    flags = "--parallel", "1", "--ctx-size", "4096", "--metadata-users", "off"
    server = serve(toy("dense"), *flags, cache=kv)
    assert server.cache()["users_by_metadata"] is False
    assert whose(server, 0, "/v1/messages", named(claude()), {}) == ""
    assert whose(server, 1, "/v1/messages", named("ann"), {}) == ""
    assert whose(server, 2, "/v1/messages", named("ben", llama_user_id="ann"), {}) == user_key("ann")


def test_bodies_do_not_override_the_proxys_header(serve: Serve, kv: Path) -> None:
    flags = "--parallel", "1", "--ctx-size", "4096", "--user-header", "X-Llama-User"
    server = serve(toy("dense"), *flags, cache=kv)
    claims: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", {"llama_user_id": "ann"}),
        ("/v1/chat/completions", {"llama_user_id": ["not", "an", "id"]}),
        ("/v1/messages", named("ann", llama_user_id="ann")),
        ("/completion", {"llama_user_id": "ann", "prompt": "Hello there", "__metadata_user_id": "ann"}),
    ]
    for number, (route, body) in enumerate(claims):
        assert whose(server, 2 * number, route, body, {"x-llama-user": "ben"}) == user_key("ben")
        assert whose(server, 2 * number + 1, route, body, {}) == ""
    chat = ROUTES["/v1/chat/completions"]
    for headers in ({"X-Llama-User": "ben lee"}, {"X-Llama-User": "../ann"}):
        assert (
            requests.post(f"{server.url}/v1/chat/completions", json=chat, headers=headers, timeout=60).status_code
            == 400
        )
    # Our own routes obey it, too.
    theirs = {"X-Llama-User": "ben"}
    assert requests.get(f"{server.url}/cache/conversations?user_id=ann", headers=theirs, timeout=60).status_code == 400
    assert requests.delete(f"{server.url}/cache/users/ann", headers=theirs, timeout=60).status_code == 400
    for path in "conversations", "requests":
        assert requests.get(f"{server.url}/cache/{path}?user_id=ben", timeout=60).status_code == 400, (
            "no header: nobody"
        )
    assert requests.delete(f"{server.url}/cache/users/ben", timeout=60).status_code == 400
    listed = requests.get(f"{server.url}/cache/conversations", headers=theirs, timeout=60).json()["conversations"]
    assert listed and requests.delete(f"{server.url}/cache/users/ben", headers=theirs, timeout=60).status_code == 200


def test_streams_that_can_be_resumed_are_nobody_elses(serve: Serve, kv: Path) -> None:
    """Upstream's know a conversation's name and no user: they are off where a proxy says whose a request is."""
    for flags, status in ((), 200), (("--user-header", "X-Llama-User"), 404):
        server = serve(toy("dense"), *SLOTS, *flags, cache=kv)
        body = ROUTES["/v1/chat/completions"] | {"stream": True}
        headers = {"X-Llama-User": "ann", "X-Conversation-Id": "main"}
        requests.post(f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=60)
        stranger = {"X-Llama-User": "ben"}
        answer = requests.get(f"{server.url}/v1/stream?conv_id=main&from=0", headers=stranger, timeout=60)
        assert answer.status_code == status, answer.text
        server.stop()


def test_users_do_not_learn_what_is_stored_for_other_settings(serve: Serve, kv: Path) -> None:
    prompt = "\n".join(LINES) * 3
    server = serve(toy("dense"), *SLOTS, cache=kv)
    assert server.complete(prompt).prompt_size > 1024
    server.stop()
    server = serve(toy("dense"), *SLOTS, "-ctk", "q8_0", "-ctv", "q8_0", cache=kv)
    assert server.complete(prompt, llama_user_id="mallory").miss == "nothing_stored"
    assert server.complete(prompt).miss == "other_fingerprint"


def test_id_matters_only_where_something_is_kept(serve: Serve) -> None:
    """Without the cache and without a limit it is upstream's server, which takes any."""
    server = serve(toy("dense"), *SLOTS)
    body = ROUTES["/v1/messages"] | {"llama_user_id": "ann@example.org"}
    assert server.request("POST", "/v1/messages", body).status_code == 200
    server.stop()
    server = serve(toy("dense"), *SLOTS, "--max-concurrent-per-user", "2")
    assert server.request("POST", "/v1/messages", body).status_code == 400


# Places


def long_request(server: CacheServer, user: str, stream: bool = False) -> requests.Response:
    body = {"prompt": LINES[0], "n_predict": 15000, "ignore_eos": True, "llama_user_id": user, "stream": stream}
    return server.request("POST", "/completion", body, stream=stream)


def test_user_takes_no_more_than_the_allowed_places(serve: Serve, kv: Path) -> None:
    flags = ("--parallel", "4", "--ctx-size", "65536", "--max-concurrent-per-user", "2")
    server = serve(toy("dense"), *flags, cache=kv)
    start = threading.Barrier(10)

    def ask(_: int) -> requests.Response:
        start.wait()
        return long_request(server, "ann", stream=True)

    with ThreadPoolExecutor(10) as clients:
        answers = list(clients.map(ask, range(10)))
    other = server.complete(LINES[0], n_predict=4, llama_user_id="ben")
    assert len(other.tokens) == 4
    served = [answer for answer in answers if answer.status_code == 200]
    assert len(served) == 2
    assert sum(slot["is_processing"] for slot in server.get("/slots")) == 2, "ben waited for ann"
    for answer in served:
        answer.close()
    for refused in (answer for answer in answers if answer.status_code != 200):
        error = refused.json()["error"]
        assert (refused.status_code, error["code"], error["type"]) == (429, 429, "rate_limit_error")
        assert int(refused.headers["Retry-After"]) >= 1 and "2" in error["message"]


def test_place_becomes_free(serve: Serve, kv: Path) -> None:
    """After errors, cancels and dropped connections both places of the user can be had again."""
    server = serve(toy("dense"), *SLOTS, "--max-concurrent-per-user", "2", cache=kv)

    def places_are_free() -> bool:
        streams = [long_request(server, "ann", stream=True) for _ in range(3)]
        codes = [stream.status_code for stream in streams]
        for stream in streams:
            stream.close()
        return codes == [200, 200, 429]

    for _ in range(4):
        assert server.request("POST", "/completion", {"prompt": -1, "llama_user_id": "ann"}).status_code == 400
        too_long = {"prompt": [1] * 5000, "n_predict": 1, "llama_user_id": "ann"}
        assert server.request("POST", "/completion", too_long).status_code == 400

    def is_dropped() -> bool:
        """A request that was let in, and whose client goes away before the answer."""
        body = {"prompt": LINES[0], "n_predict": 1500, "ignore_eos": True, "llama_user_id": "ann"}
        try:
            return requests.post(f"{server.url}/completion", json=body, timeout=0.1).status_code != 429
        except requests.ReadTimeout:
            return True

    for _ in range(2):
        wait_until(is_dropped, 20, "a place for ann")
        wait_until(places_are_free, 20, "two places for ann, and not three")


def test_burst_of_a_user_leaves_others_in_ram(serve: Serve, kv: Path) -> None:
    server = serve(toy("dense"), "--parallel", "1", "--ctx-size", "2048", "--cache-ssd-ram", "4M", cache=kv)
    prompt = "\n".join(LINES[:6])
    size = server.complete(prompt, llama_user_id="ann").prompt_size
    server.flush()
    for n in range(30):
        server.complete(f"{n} {prompt}", n_predict=1, llama_user_id="ben")
        server.flush()
    state = server.cache()["state"]
    assert state["ram_bytes"] <= state["ram_limit"] < state["disk_bytes"] / 2, "the test is too small to need room"
    answer = server.complete(prompt, llama_user_id="ann")
    assert answer.reused == size - 1 and answer.source in ("hot", "warm")
