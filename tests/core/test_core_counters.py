"""Numbers add up, by group and name."""

from __future__ import annotations

from streamd.core.counters import SPREAD_S, Spread, Stats


def test_a_stage_shows_how_often_how_long_and_how_long_at_most() -> None:
    stats = Stats()
    stats.time("engine", "queue", 0.5)
    stats.time("engine", "queue", 0.25, 8)
    assert stats.read() == {"engine": {"queue_count": 9, "queue_s": 0.75, "queue_longest_s": 0.5}}


def test_a_stage_that_somebody_keeps_is_the_one_that_is_read() -> None:
    stats = Stats()
    stats.stage("engine", "idle").add(0.5)
    stats.time("engine", "idle", 0.25)
    assert stats.read() == {"engine": {"idle_count": 2, "idle_s": 0.75, "idle_longest_s": 0.5}}


def test_counters_grow_and_gauges_are_set() -> None:
    stats = Stats()
    for _ in range(3):
        stats.count("wire", "stale")
    stats.count("wire", "bytes", 10)
    stats.gauge("daemon", "sessions", 5)
    stats.gauge("daemon", "sessions", 2)
    assert stats.read() == {"wire": {"stale": 3, "bytes": 10}, "daemon": {"sessions": 2}}


def test_groups_are_kept_apart() -> None:
    stats = Stats()
    stats.count("a", "x")
    stats.count("b", "x", 2)
    assert stats.read() == {"a": {"x": 1}, "b": {"x": 2}}


def test_what_was_read_does_not_move_afterwards() -> None:
    stats = Stats()
    stats.count("a", "x")
    seen = stats.read()
    stats.count("a", "x")
    assert seen == {"a": {"x": 1}}


def test_a_spread_is_a_stage_that_knows_how_long_each_run_took() -> None:
    stats = Stats()
    stats.spread("a", "read").add(0.004, 4)
    stats.spread("a", "read").add(0.5)
    assert stats.read() == {"a": {"read_count": 5, "read_s": 0.504, "read_longest_s": 0.5}}
    cells = stats.spreads("read")["a"].cells
    assert (cells[SPREAD_S.index(1e-3)], cells[SPREAD_S.index(1.0)], sum(cells)) == (4, 1, 5)


def test_what_is_longer_than_every_bound_has_a_cell_and_no_run_at_all_has_none() -> None:
    spread = Spread()
    spread.add(0.0, 0)
    spread.add(1e9)
    assert spread.cells == [0] * len(SPREAD_S) + [1]


def test_spreads_are_those_of_one_name() -> None:
    stats = Stats()
    stats.spread("a", "read")
    stats.spread("b", "decode")
    assert list(stats.spreads("read")) == ["a"]
