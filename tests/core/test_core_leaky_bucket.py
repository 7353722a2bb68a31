"""The leaky bucket: its level over time."""

from __future__ import annotations

from streamd.core.leaky_bucket import LeakyBucket


def test_what_is_added_drains_at_the_rate_and_never_below_nothing() -> None:
    bucket = LeakyBucket(0.5, time_s=10.0)
    bucket.add(2.0, 10.0)
    assert [bucket.compute_level(now_s) for now_s in (10.0, 11.0, 14.0, 99.0)] == [2.0, 1.5, 0.0, 0.0]
    bucket.add(1.0, 12.0)
    assert bucket.compute_level(12.0) == 2.0


def test_a_clock_that_stands_or_goes_back_drains_nothing() -> None:
    bucket = LeakyBucket(0.5, 2.0, 10.0)
    assert bucket.compute_level(9.0) == 2.0
