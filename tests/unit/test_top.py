"""What a server does now, as a terminal shows it: `llama-run top`, and the lines of the server's own terminal."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pytest
from rich.console import Console

from pyrun.cli.live_lines import LiveLines
from pyrun.cli.top import Seen
from pyrun.errors import UserError
from pyrun.server.live import Event, parse_events, request_line, slot_line, waiting_line

BUSY = {
    "id": 1,
    "phase": "evaluating",
    "for_ms": 41022.3,
    "tokens": 42176,
    "tokens_reused": 4096,
    "tokens_evaluated": 9216,
    "tokens_answered": 0,
    "tokens_per_s": 224.66,
    "left_ms": 128462.0,
}
DONE = {
    "at_ms": 1000,
    "tokens_reused": 2101,
    "tokens_evaluated": 4,
    "tokens_answered": 81,
    "prompt_ms": 60.5,
    "answer_ms": 8000,
    "cache_source": "cold",
    "restore_ms": 110.7,
    "first_token_ms": 191.4,
    "planned_ms": 171.2,
    "cache_miss": {"reason": "parted", "at": 41},
    "parted": {"words": "a\x1b[2Jb | c", "early": True, "advice": ""},
}


@pytest.mark.parametrize(
    ("slot", "line"),
    [
        ({"id": 0, "phase": "idle"}, "slot 0: idle"),
        ({"id": 0, "phase": "busy"}, "slot 0: busy"),
        (BUSY, "slot 1: 13,312 of 42,176 tokens, 4,096 reused, 224.7 tokens/s, about 2 min 8 s left"),
        (BUSY | {"phase": "restoring"}, "slot 1: restoring, 42,176 tokens, for 41.0 s"),
        (BUSY | {"phase": "answering", "tokens_answered": 7}, "slot 1: answering, 7 tokens, 224.7 tokens/s"),
    ],
)
def test_a_slot_says_what_it_does(slot: dict[str, object], line: str) -> None:
    assert slot_line(slot) == line


def test_requests_say_what_became_of_them() -> None:
    first = "first token after 191 ms (planned 171 ms)"
    assert request_line(DONE) == f"2,101 of 2,105 tokens reused from disk, {first}, 81 answered at 10.0 tokens/s"
    left = {name: value for name, value in DONE.items() if name not in ("first_token_ms", "planned_ms")}
    assert request_line(left | {"tokens_answered": 0}) == "2,101 of 2,105 tokens reused from disk, 0 answered"
    assert waiting_line({"tokens": 4182, "waits_for": "files", "for_ms": 3}) == "waiting: 4,182 tokens for its files"


def test_events_are_read_one_by_one() -> None:
    text = f"event: hello\ndata: {{}}\n\n: nothing\n\nevent: request\ndata: {json.dumps(DONE)}\n\nevent: cut"
    assert list(parse_events(iter(text.split("\n")))) == [Event("hello", {}), Event("request", DONE)]


def test_top_shows_now_and_the_last_requests_and_obeys_no_words() -> None:
    seen = Seen()
    seen.hear(Event("slots", {"slots": [BUSY], "waiting": []}))
    for _ in range(100):
        seen.hear(Event("request", DONE))
    lines = seen.lines(now_ms=61_000)
    assert lines[0].startswith("slot 1: 13,312 of") and lines[1] == ""
    assert lines[2] == f"1 min 0 s ago: {request_line(DONE)}"
    assert lines[3] == "    parted: a\N{REPLACEMENT CHARACTER}[2Jb | c"
    assert len(seen.requests) == 15


def test_a_terminal_shows_busy_slots_and_what_is_done() -> None:
    out = io.StringIO()
    lines: LiveLines

    def follow(url: str, key: str | None, *, verify: bool) -> Iterator[Event]:
        yield Event("slots", {"slots": [BUSY], "waiting": [{"tokens": 7, "waits_for": "slot", "for_ms": 1}]})
        assert "13,312 of 42,176" in out.getvalue() and "waiting: 7 tokens" in out.getvalue()
        yield Event("request", DONE)
        yield Event("slots", {"slots": [{"id": 1, "phase": "idle"}], "waiting": []})
        lines.stop()
        yield Event("request", DONE)
        raise UserError("it is gone")

    lines = LiveLines("", None, follow, Console(file=out, force_terminal=True, width=120))
    lines.run()
    assert out.getvalue().count("done: 2,101 of 2,105") == 1, "nothing is said after the end"
