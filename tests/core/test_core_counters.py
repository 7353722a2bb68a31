"""Counters, gauges and stage times, by group and name."""

from __future__ import annotations

from typing import get_args

from streamd.core.counters import (
    BUCKET_BOUNDS_S,
    CounterName,
    DaemonGauge,
    NumberName,
    ProcessStats,
    StageHistogram,
    StageName,
    read_number,
)


def test_a_stage_shows_its_count_total_and_longest_time() -> None:
    stats = ProcessStats()
    stats.find_stage_times("engine", "queue").add_runs(0.5)
    stats.find_stage_times("engine", "queue").add_runs(0.25, 8)
    assert stats.values_by_group() == {"engine": {"queue_count": 9, "queue_s": 0.75, "queue_longest_s": 0.5}}


def test_a_kept_stage_and_one_found_by_name_are_the_same() -> None:
    stats = ProcessStats()
    stats.find_stage_times("engine", "idle").add_runs(0.5)
    stats.find_stage_times("engine", "idle").add_runs(0.25)
    assert stats.values_by_group() == {"engine": {"idle_count": 2, "idle_s": 0.75, "idle_longest_s": 0.5}}


def test_counters_are_added_up_within_each_group() -> None:
    stats = ProcessStats()
    for _ in range(3):
        stats.add_count("stream.a", "produced")
    stats.add_count("stream.a", "sent_samples", 10)
    stats.add_count("stream.b", "produced", 2)
    assert stats.values_by_group() == {"stream.a": {"produced": 3, "sent_samples": 10}, "stream.b": {"produced": 2}}
    assert (stats.counter_value("stream.a", "produced"), stats.counter_value("stream.c", "produced")) == (3, 0)


def test_a_number_that_was_not_counted_is_zero() -> None:
    numbers = {"stream.a": {"produced": 3.0}}
    assert read_number(numbers, "stream.a", "produced") == 3
    assert read_number(numbers, "stream.a", "send_s") == read_number(numbers, "stream.b", "produced") == 0


def test_each_stage_has_its_three_numbers_among_those_that_can_be_read() -> None:
    names = set(get_args(NumberName))
    of_stages = {f"{stage}_{unit}" for stage in get_args(StageName) for unit in ("count", "s", "longest_s")}
    assert names == of_stages | {*get_args(CounterName), *get_args(DaemonGauge)}


def test_later_counts_do_not_change_values_already_read() -> None:
    stats = ProcessStats()
    stats.add_count("wire", "stale")
    seen = stats.values_by_group()
    stats.add_count("wire", "stale")
    assert seen == {"wire": {"stale": 1}}


def test_a_histogram_is_a_stage_with_the_duration_of_each_run() -> None:
    stats = ProcessStats()
    stats.stage_histogram("a", "read").add_runs(0.004, 4)
    stats.stage_histogram("a", "read").add_runs(0.5)
    assert stats.values_by_group() == {"a": {"read_count": 5, "read_s": 0.504, "read_longest_s": 0.5}}
    cells = stats.copy_histogram("a", "read").bucket_counts
    assert (cells[BUCKET_BOUNDS_S.index(1e-3)], cells[BUCKET_BOUNDS_S.index(1.0)], sum(cells)) == (4, 1, 5)


def test_the_last_bucket_counts_runs_longer_than_every_bound() -> None:
    spread = StageHistogram()
    spread.add_runs(0.0, 0)
    spread.add_runs(1e9)
    assert spread.bucket_counts == [0] * len(BUCKET_BOUNDS_S) + [1]


def test_a_copied_histogram_does_not_count_on_and_is_empty_for_a_stage_that_has_not_run() -> None:
    stats = ProcessStats()
    stats.stage_histogram("a", "read").add_runs(0.5)
    copied = stats.copy_histogram("a", "read")
    stats.stage_histogram("a", "read").add_runs(0.5)
    assert (copied.count, sum(copied.bucket_counts), copied.total_s) == (1, 1, 0.5)
    assert stats.copy_histogram("b", "read") == StageHistogram()
    assert set(stats.values_by_group()) == {"a"}
