"""How long conversations are kept, as `llama-run cache` shows and says it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from stores import PAGE, fill, prompt, rows_of, run, run_json, store_at

from pyrun import _kernels


def save_session(cache: Path, key: str, title: str, seed: int) -> str:
    tokens = prompt(1) + prompt(seed)
    hash = _kernels.conversation_of_key(key)
    with store_at(cache) as store:
        store.save(tokens, rows_of(tokens), conversation=hash, title=title, n_static=2 * PAGE)
    return f"{hash:016x}"


def test_sessions_that_share_their_beginning_are_listed_by_title(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {save_session(cache, f"s{n}", f"Question {n}", 2 + n): f"Question {n}" for n in range(5)}
    listed = run_json(capsys, "cache", "ls", "--cache-ssd", cache)["models"][0]["conversations"]
    assert {c["hash"]: c["title"] for c in listed} == names
    _, out, _ = run(capsys, "cache", "ls", "--cache-ssd", cache)
    assert all(title in out for title in names.values()) and len(out.splitlines()) == 7


def test_title_cannot_steer_the_terminal(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_session(cache, "evil", "\x1b[2Jred\x07\nline", 2)
    _, out, _ = run(capsys, "cache", "ls", "--cache-ssd", cache)
    assert "\x1b" not in out and "\x07" not in out and len(out.splitlines()) == 3


def test_lifetimes_are_said_and_shown(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = save_session(cache, "mine", "Mine", 2)
    fill(cache, prompt(9))
    keep = ("cache", "keep", name[:8], "--cache-ssd", cache)
    assert run(capsys, *keep, "--ttl", "24h")[:2] == (0, f"{name}: 24h  Mine\n")
    (told,) = run_json(capsys, *keep, "--expire", "7d")["conversations"]
    assert (told["ttl"], told["protected"], told["expire"]) == ("24h", True, "7d")
    listed = {c["hash"]: c for c in run_json(capsys, "cache", "ls", "--cache-ssd", cache)["models"][0]["conversations"]}
    assert listed.pop(name)["expire"] == "7d"
    assert [(c["ttl"], c["protected"], c["expire"]) for c in listed.values()] == [("none", False, "none")]
    assert "24h, gone after 7d" in run(capsys, "cache", "ls", "--cache-ssd", cache)[1]
    assert run(capsys, *keep, "--ttl", "none", "--expire", "none")[1] == f"{name}: -  Mine\n"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "give --ttl or --expire"),
        (("--ttl", "2h"), "'2h' is not one of"),
        (("--expire", "soon"), "a duration is like 90s, 30m, 12h or 7d"),
    ],
)
def test_what_is_no_lifetime_is_refused(
    cache: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], problem: str
) -> None:
    name = save_session(cache, "mine", "Mine", 2)
    code, _, err = run(capsys, "cache", "keep", name, "--cache-ssd", cache, *arguments)
    assert code != 0 and problem in err
    code, _, err = run(capsys, "cache", "keep", "0123456789abcdef", "--cache-ssd", cache, "--ttl", "1h")
    assert code == 1 and "no conversation 0123456789abcdef is stored" in err


def test_collecting_removes_what_has_expired(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone, stays = save_session(cache, "gone", "Gone", 2), save_session(cache, "stays", "Stays", 3)
    for name, expire in (gone, "1s"), (stays, "1d"):
        run(capsys, "cache", "keep", name, "--cache-ssd", cache, "--expire", expire)
    with store_at(cache) as store:
        last = max(c.last_used_ms for c in store.conversations())
    while time.time() * 1000 <= last + 1000:
        time.sleep(0.1)
    code, _, err = run(capsys, "cache", "gc", "--cache-ssd", cache)
    assert code == 0, err
    (left,) = run_json(capsys, "cache", "ls", "--cache-ssd", cache)["models"][0]["conversations"]
    assert left["hash"] == stays
