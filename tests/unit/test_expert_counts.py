"""How evenly a layer's experts work."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyrun.errors import UserError
from pyrun.experts.counts import ExpertCounts, LayerCounts, parse_counts
from pyrun.experts.plot import plot_counts


def layer(*counts: int) -> LayerCounts:
    return LayerCounts(0, sum(counts), counts)


def test_even_work_has_the_greatest_entropy() -> None:
    even = layer(*[7] * 20)
    assert even.balance == pytest.approx(1) and even.busiest_share == pytest.approx(0.1)
    assert even.needed_for_most == 18 and even.unused == 0


def test_one_expert_that_does_everything_is_seen() -> None:
    alone = layer(0, 0, 9, 0)
    assert (alone.balance, alone.busiest_share, alone.needed_for_most, alone.unused) == (0, 1, 1, 3)
    assert alone.busiest(3) == [(2, 1.0)]


def test_entropy_and_shares_are_those_of_a_known_case() -> None:
    uneven = layer(2, 4, 0, 2)  # shares 1/4, 1/2, 0, 1/4: 1.5 bits of 2
    assert uneven.balance == pytest.approx(0.75)
    assert uneven.busiest(4) == [(1, 0.5), (0, 0.25), (3, 0.25)]
    assert uneven.needed_for_most == 3


def test_nothing_counted_is_no_division_by_zero() -> None:
    empty = layer(0, 0)
    assert (empty.balance, empty.busiest_share, empty.busiest(2)) == (0, 0, [])


def test_answer_of_a_server_is_understood() -> None:
    activations = [{"expert": 2, "count": 5, "frequency": 0.5}, {"expert": 0, "count": 5, "frequency": 0.5}]
    told = {
        "n_expert": 3,
        "n_expert_used": 2,
        "total_tokens": 9,
        "tracking_enabled": True,
        "layers": [{"layer": 4, "tokens": 5, "activations": activations}],
    }
    assert parse_counts(told) == ExpertCounts(3, 2, 9, True, [LayerCounts(4, 5, (5, 0, 5))])


@pytest.mark.parametrize(
    ("name", "written", "magic"),
    [("a.png", "a.png", b"\x89PNG"), ("a.svg", "a.svg", b"<?xml"), ("a", "a.png", b"\x89PNG")],
)
def test_counts_are_plotted(tmp_path: Path, name: str, written: str, magic: bytes) -> None:
    said = plot_counts(ExpertCounts(4, 2, 8, True, [layer(1, 2, 3, 4), layer(0, 0, 0, 5)]), tmp_path / name)
    assert said == tmp_path / written and said.read_bytes().startswith(magic)


@pytest.mark.parametrize("name", ["missing/a.png", "a.unknown"])
def test_plot_that_cannot_be_written_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=name.split("/")[-1]):
        plot_counts(ExpertCounts(2, 1, 3, True, [layer(1, 2)]), tmp_path / name)
