"""Numbers add up, by group and name."""

from __future__ import annotations

from streamd.core.counters import BUCKET_BOUNDS_S, ProcessStats, StageHistogram


def test_a_stage_shows_how_often_how_long_and_how_long_at_most() -> None:
    stats = ProcessStats()
    stats.add_stage_runs("engine", "queue", 0.5)
    stats.add_stage_runs("engine", "queue", 0.25, 8)
    assert stats.values_by_group() == {"engine": {"queue_count": 9, "queue_s": 0.75, "queue_longest_s": 0.5}}


def test_a_stage_that_somebody_keeps_is_the_one_that_is_read() -> None:
    stats = ProcessStats()
    stats.find_stage_times("engine", "idle").add_runs(0.5)
    stats.add_stage_runs("engine", "idle", 0.25)
    assert stats.values_by_group() == {"engine": {"idle_count": 2, "idle_s": 0.75, "idle_longest_s": 0.5}}


def test_counters_grow_and_gauges_are_set_in_each_group_apart() -> None:
    stats = ProcessStats()
    for _ in range(3):
        stats.add_count("wire", "stale")
    stats.add_count("wire", "bytes", 10)
    stats.set_gauge("daemon", "sessions", 5)
    stats.set_gauge("daemon", "sessions", 2)
    stats.add_count("daemon", "stale", 2)
    assert stats.values_by_group() == {"wire": {"stale": 3, "bytes": 10}, "daemon": {"sessions": 2, "stale": 2}}


def test_what_was_read_does_not_move_afterwards() -> None:
    stats = ProcessStats()
    stats.add_count("a", "x")
    seen = stats.values_by_group()
    stats.add_count("a", "x")
    assert seen == {"a": {"x": 1}}


def test_a_spread_is_a_stage_that_knows_how_long_each_run_took() -> None:
    stats = ProcessStats()
    stats.stage_histogram("a", "read").add_runs(0.004, 4)
    stats.stage_histogram("a", "read").add_runs(0.5)
    assert stats.values_by_group() == {"a": {"read_count": 5, "read_s": 0.504, "read_longest_s": 0.5}}
    cells = stats.histograms_by_group("read")["a"].bucket_counts
    assert (cells[BUCKET_BOUNDS_S.index(1e-3)], cells[BUCKET_BOUNDS_S.index(1.0)], sum(cells)) == (4, 1, 5)


def test_what_is_longer_than_every_bound_has_a_cell_and_no_run_at_all_has_none() -> None:
    spread = StageHistogram()
    spread.add_runs(0.0, 0)
    spread.add_runs(1e9)
    assert spread.bucket_counts == [0] * len(BUCKET_BOUNDS_S) + [1]


def test_spreads_are_those_of_one_name() -> None:
    stats = ProcessStats()
    stats.stage_histogram("a", "read")
    stats.stage_histogram("b", "decode")
    assert list(stats.histograms_by_group("read")) == ["a"]
