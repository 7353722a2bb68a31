"""Counters, gauges and stage times, by group and name."""

from __future__ import annotations

from streamd.core.counters import BUCKET_BOUNDS_S, ProcessStats, StageHistogram


def test_a_stage_shows_its_count_total_and_longest_time() -> None:
    stats = ProcessStats()
    stats.add_stage_runs("engine", "queue", 0.5)
    stats.add_stage_runs("engine", "queue", 0.25, 8)
    assert stats.values_by_group() == {"engine": {"queue_count": 9, "queue_s": 0.75, "queue_longest_s": 0.5}}


def test_a_kept_stage_and_one_found_by_name_are_the_same() -> None:
    stats = ProcessStats()
    stats.find_stage_times("engine", "idle").add_runs(0.5)
    stats.add_stage_runs("engine", "idle", 0.25)
    assert stats.values_by_group() == {"engine": {"idle_count": 2, "idle_s": 0.75, "idle_longest_s": 0.5}}


def test_counters_are_added_up_and_gauges_are_set_within_each_group() -> None:
    stats = ProcessStats()
    for _ in range(3):
        stats.add_count("wire", "stale")
    stats.add_count("wire", "bytes", 10)
    stats.set_gauge("daemon", "sessions", 5)
    stats.set_gauge("daemon", "sessions", 2)
    stats.add_count("daemon", "stale", 2)
    assert stats.values_by_group() == {"wire": {"stale": 3, "bytes": 10}, "daemon": {"sessions": 2, "stale": 2}}


def test_later_counts_do_not_change_values_already_read() -> None:
    stats = ProcessStats()
    stats.add_count("a", "x")
    seen = stats.values_by_group()
    stats.add_count("a", "x")
    assert seen == {"a": {"x": 1}}


def test_a_histogram_is_a_stage_with_the_duration_of_each_run() -> None:
    stats = ProcessStats()
    stats.stage_histogram("a", "read").add_runs(0.004, 4)
    stats.stage_histogram("a", "read").add_runs(0.5)
    assert stats.values_by_group() == {"a": {"read_count": 5, "read_s": 0.504, "read_longest_s": 0.5}}
    cells = stats.histograms_by_group("read")["a"].bucket_counts
    assert (cells[BUCKET_BOUNDS_S.index(1e-3)], cells[BUCKET_BOUNDS_S.index(1.0)], sum(cells)) == (4, 1, 5)


def test_the_last_bucket_counts_runs_longer_than_every_bound() -> None:
    spread = StageHistogram()
    spread.add_runs(0.0, 0)
    spread.add_runs(1e9)
    assert spread.bucket_counts == [0] * len(BUCKET_BOUNDS_S) + [1]


def test_histograms_are_found_by_stage_name() -> None:
    stats = ProcessStats()
    stats.stage_histogram("a", "read")
    stats.stage_histogram("b", "decode")
    assert list(stats.histograms_by_group("read")) == ["a"]
