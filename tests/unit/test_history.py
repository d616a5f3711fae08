"""What of a history is sent (kernels/history), as properties over random histories."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrun._kernels import Cut, cut_history

Message = tuple[str, int, list[str], list[str]]

# No deadlines: how long an example takes says something about the machine only.
SLOWER = settings(max_examples=40)

BUDGET = 1000
LOW = 450
HIGH = 850


@st.composite
def histories(draw: st.DrawFn) -> list[Message]:
    """Users, assistants, system messages; calls whose results come at once, late, in a user's name, or never.

    A result never comes behind the second user message after its call: such a call was given up.
    """
    tokens = st.integers(0, 300)
    out: list[Message] = [("system", draw(tokens), [], [])] if draw(st.booleans()) else []
    waiting: list[str] = []  # calls of this exchange and of the one before
    before: list[str] = []
    kinds = st.sampled_from(["user", "user", "assistant", "assistant", "call", "result", "result as user", "system"])
    for number, kind in enumerate(draw(st.lists(kinds, max_size=40))):
        if kind == "call":
            ids = [f"call {draw(st.integers(0, 3)) if draw(st.booleans()) else number}"]
            ids = [i for i in ids if i not in waiting and i not in before]
            waiting += ids
            out.append(("assistant", draw(tokens), ids, []))
        elif kind.startswith("result"):
            open_ids = before + waiting
            if not open_ids:
                continue
            chosen = draw(st.lists(st.sampled_from(open_ids), min_size=1, unique=True))
            waiting = [i for i in waiting if i not in chosen]
            before = [i for i in before if i not in chosen]
            out.append(("user" if "user" in kind else "tool", draw(tokens), [], chosen))
        else:
            if kind == "user":
                before, waiting = waiting, []
            out.append((kind, draw(tokens), [], []))
    return out


def cut(history: list[Message]) -> Cut:
    return cut_history(history, BUDGET, n_note_tokens=7)


def indices(ranges: list[tuple[int, int]]) -> list[int]:
    return [i for begin, end in ranges for i in range(begin, end)]


def last_start(history: list[Message]) -> int:
    """Of the last exchange: a user's message that does not bring results."""
    starts = [i for i, (role, _, _, results) in enumerate(history) if role == "user" and not results]
    return starts[-1] if starts else 0


def partners(history: list[Message]) -> list[tuple[int, int]]:
    """Calls and their results, as indices. Ids come again; a result belongs to the last call of its name."""
    called: dict[str, int] = {}
    found = []
    for index, (_, _, calls, results) in enumerate(history):
        found += [(called[i], index) for i in results if i in called]
        called.update(dict.fromkeys(calls, index))
    return found


@given(histories())
def test_the_same_history_gives_the_same_cut(history: list[Message]) -> None:
    first, second = cut(history), cut(list(history))
    assert (first.kept, first.ahead, first.n_tokens) == (second.kept, second.ahead, second.n_tokens)


@given(histories())
def test_what_is_kept_is_counted_and_fits_or_it_is_told_by_how_much_not(history: list[Message]) -> None:
    found = cut(history)
    kept = indices(found.kept)
    note = 7 if len(kept) < len(history) else 0
    assert found.n_tokens == sum(history[i][1] for i in kept) + note
    assert found.n_over == max(0, found.n_tokens - BUDGET)
    assert found.n_dropped == len(history) - len(kept)
    assert found.n_tokens_dropped == sum(message[1] for message in history) - found.n_tokens + note
    assert all(a_end < b_begin for (_, a_end), (b_begin, _) in pairwise(found.kept))


@given(histories())
def test_system_messages_and_the_last_exchange_are_never_dropped(history: list[Message]) -> None:
    kept = set(indices(cut(history).kept))
    assert {i for i, message in enumerate(history) if message[0] == "system"} <= kept
    assert set(range(last_start(history), len(history))) <= kept


@given(histories())
def test_a_call_is_never_parted_from_its_result(history: list[Message]) -> None:
    found = cut(history)
    for kept in (set(indices(found.kept)), set(indices(found.ahead or found.kept))):
        for call, result in partners(history):
            assert (call in kept) == (result in kept)


@given(histories())
def test_only_whole_exchanges_are_dropped_and_the_oldest_first(history: list[Message]) -> None:
    kept = set(indices(cut(history).kept))
    dropped = [i for i in range(len(history)) if i not in kept]
    if dropped:
        rest = [i for i in sorted(kept) if i > dropped[-1] and history[i][0] != "system"]
        role, _, _, results = history[rest[0]]
        assert role == "user"
        assert results == []
        assert all(history[i][0] == "system" or i > dropped[-1] for i in kept)


@SLOWER
@given(histories())
def test_a_longer_history_only_drops_more_and_between_two_cuts_the_prefix_is_the_same(history: list[Message]) -> None:
    steps = [cut(history[:n]) for n in range(len(history) + 1)]
    for n, (before, after) in enumerate(pairwise(steps)):
        old, new = indices(before.kept), indices(after.kept)
        assert set(new) <= {*old, n}, "a dropped message came back"
        if after.n_cuts == before.n_cuts:
            assert new == [*old, n], "what was kept changed without a cut"
        else:
            assert after.n_cuts == before.n_cuts + 1
            assert len(new) <= len(old), "a cut dropped nothing"


@SLOWER
@given(histories())
def test_a_cut_comes_only_past_the_high_mark_and_leaves_about_the_low_mark(history: list[Message]) -> None:
    steps = [cut(history[:n]) for n in range(len(history) + 1)]
    for n, (before, after) in enumerate(pairwise(steps)):
        tokens = history[n][1]
        if after.n_cuts > before.n_cuts:
            assert before.n_tokens + tokens > HIGH
            assert after.n_tokens <= LOW + tokens + 7 or later_places(history[: n + 1], after) == []


def later_places(history: list[Message], found: Cut) -> list[int]:
    """Where more could have been dropped: not between a call and its result, nor behind a call that may still run."""
    begin = next(i for i in indices(found.kept) if history[i][0] != "system")
    pairs = partners(history)
    answered = {call for call, _ in pairs}
    starts = [i for i, (role, _, _, results) in enumerate(history) if role == "user" and not results]
    before_last = starts[-2] if len(starts) > 1 else 0
    running = [i for i, message in enumerate(history) if message[2] and i not in answered and i >= before_last]
    parted = [*pairs, *((call, len(history)) for call in running)]
    return [s for s in starts if s > begin and not any(call < s <= result for call, result in parted)]


@SLOWER
@given(histories())
def test_what_was_announced_is_what_the_cut_leaves(history: list[Message]) -> None:
    steps = [cut(history[:n]) for n in range(len(history) + 1)]
    for n, (before, after) in enumerate(pairwise(steps)):
        if not before.ahead:
            continue
        if after.n_cuts == before.n_cuts:
            assert indices(after.ahead) == [*indices(before.ahead), n]
        elif sum(history[i][1] for i in indices(before.ahead)) + history[n][1] + 7 <= HIGH:
            assert indices(after.kept) == [*indices(before.ahead), n]


def test_a_result_that_comes_after_its_call_was_given_up_disturbs_nothing() -> None:
    history: list[Message] = [("user", 10, [], []), ("assistant", 400, ["x"], [])]
    history += [("user", 200, [], []), ("assistant", 100, [], []), ("user", 200, [], [])]
    assert indices(cut(history).kept) == [4]
    assert indices(cut([*history, ("tool", 10, [], ["x"])]).kept) == [4, 5]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([("robot", 1, [], [])], 10), "no role"),
        (([], 10, 0, 45, 85), "in order"),
        (([], 10, 0, 120, 85), "in order"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cut_history(*arguments)  # type: ignore[arg-type]
