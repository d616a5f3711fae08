"""What is written to the disk is counted over restarts, and has a budget for a day."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cache_server import CacheServer, Serve, say, toy

from toys.corpus import TEXT

pytestmark = pytest.mark.server

BUDGET = 2 << 20
FLAGS = ("--parallel", "2", "--ctx-size", "4096", "--no-kv-unified")
WORDS = TEXT.split()


def written(server: CacheServer) -> dict[str, Any]:
    return dict(server.flush()["written"])


def test_beyond_the_days_budget_only_what_is_asked_for_twice_is_written(serve: Serve, kv: Path) -> None:
    server = serve(toy("dense"), *FLAGS, "--cache-ssd-write-budget", "2M", cache=kv)
    bytes_each = 0
    for number in range(40):
        text = " ".join(WORDS[(number * 31 + n) % len(WORDS)] for n in range(200))
        asked = server.chat([say("user", f"{number} {text}")], max_tokens=2)
        assert asked.text is not None
        if number == 0:
            bytes_each = written(server)["today"]
    told = written(server)
    assert 40 * bytes_each > BUDGET, "the load is too small to show anything"
    # A page in a minute may come on top, and the small files that name conversations.
    assert told["today"] <= BUDGET + 2 * bytes_each and told["budget"] == BUDGET
    assert told["skipped"] > 0 and told["skipped_bytes"] > 0
    server.stop()

    again = serve(toy("dense"), *FLAGS, cache=kv)
    later = written(again)
    assert later["today"] == later["week"] == later["ever"] >= told["today"] and later["budget"] == 0
    again.chat([say("user", "something else " * 60)])
    assert written(again)["today"] > later["today"]
