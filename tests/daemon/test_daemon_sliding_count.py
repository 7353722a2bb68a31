"""A count over the last seconds."""

from __future__ import annotations

import pytest

from streamd.core.status import COUNTED_SPAN_S
from streamd.daemon.status_builder import SlidingCount, compute_window


def test_amounts_within_the_span_are_counted() -> None:
    recent = SlidingCount()
    for second in range(10):
        recent.add_amount(100.0 + second, 3)
    assert recent.compute_total(109.5) == 30


def test_amounts_older_than_the_span_are_forgotten() -> None:
    recent = SlidingCount()
    recent.add_amount(20.0, 5)
    recent.add_amount(28.0, 7)
    assert recent.compute_total(28.0) == 12
    assert recent.compute_total(20.0 + COUNTED_SPAN_S) == 7
    assert recent.compute_total(28.0 + 2 * COUNTED_SPAN_S) == 0


def test_a_longer_span_is_kept_where_asked_for() -> None:
    recent = SlidingCount(30)
    recent.add_amount(10.0)
    assert (recent.compute_total(35.0), recent.compute_total(45.0)) == (1, 0)


@pytest.mark.parametrize(
    ("now_s", "began_s", "window_s"),
    [(100.2, 100.0, 1.0), (104.0, 100.0, 4.0), (200.0, 100.0, 9.5), (200.75, 0.0, 9.75)],
)
def test_the_window_is_what_the_counts_cover(now_s: float, began_s: float, window_s: float) -> None:
    assert compute_window(now_s, began_s) == window_s


@pytest.mark.parametrize("now_s", [50.0, 50.4, 50.999])
def test_a_steady_rate_is_measured_exactly(now_s: float) -> None:
    recent = SlidingCount()
    for tenth in range(int(now_s * 1000) + 1):
        recent.add_amount(tenth / 1000)
    assert recent.compute_total(now_s) / compute_window(now_s, 0.0) == pytest.approx(1000, rel=0.001)


def test_merging_takes_the_larger_amount_of_each_moment() -> None:
    one, other = SlidingCount(), SlidingCount()
    one.add_amount(1.0, 5)
    one.add_amount(4.0, 5)
    other.add_amount(1.0, 3)
    other.add_amount(7.0, 4)
    one.merge_maximum(other)
    assert one.compute_total(8.0) == 14
    assert other.compute_total(8.0) == 7


def test_cells_do_not_pile_up() -> None:
    recent = SlidingCount()
    for second in range(0, 10_000, 3):
        recent.add_amount(float(second))
    assert len(recent._cells) <= 2 * COUNTED_SPAN_S
