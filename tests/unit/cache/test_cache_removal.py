"""What `llama-run cache rm` removes, asks and refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from stores import (
    OTHER,
    conversation,
    fill,
    prompt,
    rows_of,
    run,
    run_json,
    snapshot,
    store_at,
)

from pyrun import _kernels
from pyrun.cache.look import list_cache


def test_rm_asks(cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    fill(cache, prompt(1), prompt(2))
    name = conversation(prompt(1))
    before = snapshot(cache)
    for words in ((name,), ("--all",)):
        code, _, err = run(capsys, "cache", "rm", *words, "--cache-ssd", cache)
        assert code == 1 and "this would remove" in err and "hint: add --yes" in err
    answers: list[str] = []
    monkeypatch.setattr("pyrun.console.is_interactive", lambda: True)

    def refuse(question: str, err: bool) -> bool:
        answers.append(question)
        return False

    monkeypatch.setattr("click.confirm", refuse)
    assert run(capsys, "cache", "rm", name[:6], "--cache-ssd", cache)[0] == 130
    assert answers[0].startswith("Remove 1 conversation, ") and snapshot(cache) == before
    monkeypatch.setattr("click.confirm", lambda question, err: True)
    code, out, err = run(capsys, "cache", "rm", name[:6], "--cache-ssd", cache)
    assert code == 0 and "1 conversation removed" in out and f"  {name}: 1 turn, 40 tokens" in err
    assert [c.hash for c in list_cache(cache).models[0].conversations] == [conversation(prompt(2))]


def test_rm_frees_the_bytes_it_says(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(cache, prompt(1), prompt(2))
    fill(cache, prompt(1), model=OTHER)
    before = _kernels.measure_tree(str(cache))
    done = run_json(capsys, "cache", "rm", conversation(prompt(1)), "--model", "f1", "--yes", "--cache-ssd", cache)
    after = _kernels.measure_tree(str(cache))
    assert done["bytes_freed"] == before - after > 0
    assert [c["hash"] for c in done["conversations"]] == [conversation(prompt(1))]
    assert [len(model.conversations) for model in list_cache(cache).models] == [1, 1]
    done = run_json(capsys, "cache", "rm", "--all", "--yes", "--cache-ssd", cache)
    assert done["bytes_freed"] == after - _kernels.measure_tree(str(cache)) and len(done["conversations"]) == 2
    assert [path.name for path in cache.iterdir()] == ["CACHEDIR.TAG"]
    assert run(capsys, "cache", "ls", "--cache-ssd", cache) == (0, "", f"nothing is stored in {cache}\n")


def test_rm_does_not_take_one_user_for_another(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(cache, prompt(1))
    for user in ("alice", "bob"):
        fill(cache, prompt(1), prompt(2), user=user)
    fill(cache, prompt(1), model=OTHER, user="alice")
    with store_at(cache) as store:  # pages whose answer never came: no conversation lists them
        store.save(prompt(9), rows_of(prompt(9)), user="carol", checkpoint=False)
    done = run_json(capsys, "cache", "rm", "--user", "alice", "--yes", "--cache-ssd", cache)
    assert len(done["conversations"]) == 3
    left = {c.user for model in list_cache(cache).models for c in model.conversations}
    assert left == {None, _kernels.user_key("bob").hex()}
    assert run_json(capsys, "cache", "rm", "--user", "carol", "--yes", "--cache-ssd", cache)["bytes_freed"] > 0
    assert not list(cache.rglob(_kernels.user_key("carol").hex()))


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("", 2, "give the hashes of conversations, or --all, or --user ID"),
        ("--all --user x", 2, "give the hashes of conversations, or --all, or --user ID"),
        ("abcd --all", 2, "give the hashes of conversations, or --all, or --user ID"),
        ("xyz!", 1, "'xyz!' is not the hash of a conversation"),
        ("abc", 1, "'abc' is not the hash of a conversation"),
        ("0000000000000000", 1, "no conversation 0000000000000000 is stored"),
        ("--user a/b", 1, "'a/b' is not a user id"),
        ("--user nobody", 1, "nothing is stored for the user 'nobody'"),
        ("--all --model 00", 1, "no model in"),
    ],
)
def test_wrong_names_remove_nothing(
    cache: Path, capsys: pytest.CaptureFixture[str], words: str, code: int, message: str
) -> None:
    fill(cache, prompt(1))
    before = snapshot(cache)
    actual, _, err = run(capsys, "cache", "rm", *words.split(), "--yes", "--cache-ssd", cache)
    assert (actual, message in err) == (code, True), err
    assert snapshot(cache) == before


def test_short_hash_of_several_conversations_removes_none(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen: dict[str, int] = {}
    for seed in range(2000):  # two prompts whose hashes start alike
        start = conversation(prompt(seed, 5))[:4]
        if start in seen:
            break
        seen[start] = seed
    fill(cache, prompt(seen[start], 5), prompt(seed, 5))
    code, _, err = run(capsys, "cache", "rm", start, "--yes", "--cache-ssd", cache)
    assert code == 1 and f"{start} could be any of these conversations:\n  {start}" in err
    assert len(list_cache(cache).models[0].conversations) == 2
