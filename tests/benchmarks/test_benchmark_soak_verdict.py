"""Whether a curve is flat: it must be possible to say no."""

from __future__ import annotations

from dataclasses import replace

import pytest
from soak_rows import Row
from soak_verdict import LEAST_ROWS, Fit, fits, overdrawn, slope
from soaking import MIB, ROW, hour


def growing(rows: list[Row]) -> set[tuple[str, str]]:
    return {(each.curve, each.over) for each in fits(rows) if not each.flat}


def test_a_slope_is_not_moved_by_a_few_wild_values() -> None:
    values = [3.0 * time for time in range(20)]

    assert slope(range(20), values) == pytest.approx(3)
    assert slope(range(20), [*values[:5], 1e9, *values[6:]]) == pytest.approx(3, rel=0.01)


def test_an_hour_in_which_nothing_grows_is_flat() -> None:
    found = fits(hour())

    assert len(found) == 8 + 5  # all curves over all, and the daemon's over its one life
    assert growing(hour()) == set()


@pytest.mark.parametrize(
    ("leak", "curve"),
    [
        ({"daemon_bytes": 6 * MIB}, "memory of the daemon, MiB"),
        ({"daemon_descriptors": 6}, "descriptors of the daemon"),
        ({"daemon_threads": 2}, "threads of the daemon"),
        ({"worker_bytes": 6 * MIB}, "memory of the largest worker, MiB"),
        ({"trainer_bytes": 6 * MIB}, "memory of the lasting trainer, MiB"),
        ({"trainer_descriptors": 6}, "descriptors of the lasting trainer"),
        ({"trainer_threads": 2}, "threads of the lasting trainer"),
    ],
)
def test_what_grows_within_an_hour_is_told_by_name(leak: dict[str, int], curve: str) -> None:
    ((name, growth),) = leak.items()
    rows = [replace(row, **{name: getattr(row, name) + int(growth * row.time_s / 3600)}) for row in hour()]

    assert (curve, "all") in growing(rows)
    assert {each for each, _ in growing(rows)} == {curve}


def test_a_leak_that_each_new_daemon_begins_anew_is_found_within_a_life() -> None:
    rows = [replace(row, daemon_bytes=50 * MIB + int(10 * MIB * row.daemon_age_s / 600)) for row in hour(life_s=600.0)]

    assert ("memory of the daemon, MiB", "daemon 2") in growing(rows)


def test_a_start_is_no_growth_and_a_short_run_says_nothing() -> None:
    young = [replace(ROW, time_s=time, daemon_age_s=time, daemon_bytes=MIB * int(1 + time)) for time in range(29)]

    assert fits(young) == []
    assert fits(hour()[: LEAST_ROWS - 1]) == []


def test_values_that_are_not_known_are_left_out() -> None:
    rows = [replace(row, daemon_bytes=None) if number % 2 else row for number, row in enumerate(hour())]

    assert [each.median for each in fits(rows) if each.curve == "memory of the daemon, MiB"] == [50.0, 50.0]


def test_shrinking_is_flat() -> None:
    assert Fit("a curve", "all", 60.0, median=10.0, growth=-5.0, allowed=1.0).flat


@pytest.mark.parametrize("counted", ["slots_bytes", "accounted_bytes"])
def test_more_batch_memory_than_allowed_is_told(counted: str) -> None:
    assert overdrawn([ROW], 20 * MIB) == []
    assert len(overdrawn([ROW, replace(ROW, **{counted: 20 * MIB + 1})], 20 * MIB)) == 1
