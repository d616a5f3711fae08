"""What the benchmark expects a cache to reuse, and what makes a result invalid in every scenario."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from fakes.bench import Scripted, answer, bench_of

from benchmarks import bench as bench_module
from benchmarks.bench import Fresh, Sent, anchors_of, broken_promise
from benchmarks.peers import Answer, PeerError
from benchmarks.results import (
    new_result,
)


def test_new_tokens_are_counted_from_the_nearest_prompt() -> None:
    sent = Sent()
    assert sent.add([1, 2, 3]).new == 3
    assert sent.add([1, 2, 9, 9]).new == 2
    assert sent.add([1, 2, 3, 4]).new == 1
    assert sent.add([1, 2, 3, 4]).new == 1, "the last token is always evaluated"


def test_anchor_is_promised_up_to_where_prompts_part() -> None:
    sent = Sent(least_before_last_message=1)
    assert sent.add([1, 2, 3, 4, 5, 6], (2, 4, 6)) == Fresh(6, 6)
    assert sent.add([1, 2, 3, 4, 5, 9, 9], (2, 4, 7)) == Fresh(2, 3), "from the one at 4"
    assert sent.add([1, 2, 3, 9], (2, 3, 4)) == Fresh(1, 2), "from the one at 2"
    assert sent.add([8, 8], (1, 2)) == Fresh(2, 2)
    far = Sent(least_before_last_message=3)
    far.add([1, 2, 3, 4, 5, 6], (2, 4, 6))
    assert far.add([1, 2, 3, 4, 9], (2, 5)) == Fresh(1, 3), "two tokens were not worth an anchor at 4"


def test_anchors_are_expected_between_messages() -> None:
    def tokenise(messages: Sequence[dict[str, str]]) -> list[int]:
        return [ord(c) for m in messages for c in f"<{m['role'][0]}>{m['content']}"]

    chat = [("system", "abc"), ("user", "de"), ("assistant", "f"), ("user", "gh")]
    messages = [{"role": role, "content": content} for role, content in chat]
    assert anchors_of(messages, tokenise) == (9, 18, 20), "<s>abc<u>, <s>abc<u>de<a>f<u>, and all"


@pytest.mark.parametrize(
    ("given", "restores_at", "broken"),
    [
        (answer(evaluated=10), "any_token", False),
        (answer(evaluated=11, miss="parted"), "any_token", True),
        (answer(evaluated=900, miss="recompute_faster"), "any_token", False),
        (answer(evaluated=90, miss="no_anchor"), "anchors", False),
        (answer(evaluated=90, miss="new_tokens"), "anchors", False),
        (answer(evaluated=90, miss="corrupt"), "anchors", True),
        (answer(evaluated=200, miss="no_anchor"), "anchors", True),
        (answer(evaluated=90, miss="nothing_stored"), "anchors", True),
        (answer(evaluated=10, miss="nothing_stored"), "anchors", False),
    ],
)
def test_broken_promise_is_noticed(given: Answer, restores_at: str, broken: bool) -> None:
    assert (broken_promise(given, Fresh(10, 90), restores_at) is not None) is broken


def test_page_cache_that_stays_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = tmp_path / "store" / "page"
    stored.parent.mkdir()
    stored.write_bytes(b"x" * 10)
    seen: list[Path] = []

    def keep(paths: Sequence[Path]) -> bool:
        seen.extend(paths)
        return False

    monkeypatch.setattr(bench_module, "forget", keep)
    result = new_result("agent", {})
    assert not bench_of(tmp_path).forget(result, Scripted("llama-run", tmp_path), tmp_path / "twin")
    assert seen == [stored, tmp_path / "twin"]
    assert "stayed in the page cache" in result["notes"][0]


def test_cache_that_cannot_be_emptied_ends_the_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: Path) -> None:
        raise PermissionError(13, "Permission denied", str(folder / "page"))

    (tmp_path / "store").mkdir()
    monkeypatch.setattr(shutil, "rmtree", refuse)
    with pytest.raises(PeerError, match="cannot empty the cache of llama-run: .*page: Permission denied"):
        bench_of(tmp_path).empty_caches(Scripted("llama-run", tmp_path))
