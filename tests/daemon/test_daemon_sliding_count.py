"""A count that forgets."""

from __future__ import annotations

from streamd.daemon.status_builder import COUNTED_SPAN_S, SlidingCount


def test_what_happened_within_the_span_is_counted() -> None:
    recent = SlidingCount(since_s=100.0)
    for second in range(10):
        recent.add_amount(100.0 + second, 3)
    assert recent.compute_total(109.5) == 30


def test_what_is_older_than_the_span_is_forgotten() -> None:
    recent = SlidingCount(since_s=0.0)
    recent.add_amount(10.0, 5)
    recent.add_amount(30.0, 7)
    assert recent.compute_total(30.0) == 12
    assert recent.compute_total(10.0 + COUNTED_SPAN_S + 4) == 7
    assert recent.compute_total(30.0 + 2 * COUNTED_SPAN_S) == 0


def test_the_rate_of_a_young_count_is_over_its_own_age() -> None:
    recent = SlidingCount(since_s=100.0)
    for second in range(10):
        recent.add_amount(100.0 + second, 20)
    assert recent.compute_rate(110.0) == 20


def test_the_rate_of_an_old_count_is_over_the_span() -> None:
    recent = SlidingCount(since_s=0.0)
    recent.add_amount(1000.0, 30 * COUNTED_SPAN_S)
    assert recent.compute_rate(1000.0) == 30


def test_covering_another_count_takes_the_larger_of_each_moment() -> None:
    one, other = SlidingCount(since_s=0.0), SlidingCount(since_s=0.0)
    one.add_amount(1.0, 5)
    one.add_amount(11.0, 5)
    other.add_amount(1.0, 3)
    other.add_amount(21.0, 4)
    one.merge_maximum(other)
    assert one.compute_total(22.0) == 14
    assert other.compute_total(22.0) == 7


def test_cells_do_not_pile_up() -> None:
    recent = SlidingCount(since_s=0.0)
    for second in range(0, 10_000, 3):
        recent.add_amount(float(second))
    assert len(recent._cells) <= COUNTED_SPAN_S // 2 + 1
