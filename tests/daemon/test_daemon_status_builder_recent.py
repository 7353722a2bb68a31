"""A count that forgets."""

from __future__ import annotations

from streamd.daemon.status_builder import SPAN_S, Recent


def test_what_happened_within_the_span_is_counted() -> None:
    recent = Recent(since_s=100.0)
    for second in range(10):
        recent.add(100.0 + second, 3)
    assert recent.total(109.5) == 30


def test_what_is_older_than_the_span_is_forgotten() -> None:
    recent = Recent(since_s=0.0)
    recent.add(10.0, 5)
    recent.add(30.0, 7)
    assert recent.total(30.0) == 12
    assert recent.total(10.0 + SPAN_S + 4) == 7
    assert recent.total(30.0 + 2 * SPAN_S) == 0


def test_the_rate_of_a_young_count_is_over_its_own_age() -> None:
    recent = Recent(since_s=100.0)
    for second in range(10):
        recent.add(100.0 + second, 20)
    assert recent.per_s(110.0) == 20


def test_the_rate_of_an_old_count_is_over_the_span() -> None:
    recent = Recent(since_s=0.0)
    recent.add(1000.0, 30 * SPAN_S)
    assert recent.per_s(1000.0) == 30


def test_covering_another_count_takes_the_larger_of_each_moment() -> None:
    one, other = Recent(since_s=0.0), Recent(since_s=0.0)
    one.add(1.0, 5)
    one.add(11.0, 5)
    other.add(1.0, 3)
    other.add(21.0, 4)
    one.cover(other)
    assert one.total(22.0) == 14
    assert other.total(22.0) == 7


def test_cells_do_not_pile_up() -> None:
    recent = Recent(since_s=0.0)
    for second in range(0, 10_000, 3):
        recent.add(float(second))
    assert len(recent._cells) <= SPAN_S // 2 + 1
