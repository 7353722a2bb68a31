"""What is told of the daemon as a whole."""

from __future__ import annotations

from dataclasses import replace

from support.sample_metrics import figures, values

from streamd.daemon.monitor.metrics import build_daemon_metrics


def test_memory_is_told_with_its_budget() -> None:
    told = values(build_daemon_metrics(figures(numbers={"daemon": {"slots": 9, "slot_wait_s": 1.5, "producing": 2}})))
    assert (told["memory_limit_bytes{}"], told["memory_used_bytes{}"], told["slots{}"]) == (1 << 30, 1 << 20, 9)
    assert (told["slot_wait_seconds_total{}"], told["productions{}"]) == (1.5, 2)


def test_workers_are_told_with_what_they_do_and_how_many_died() -> None:
    engine = {"worker_deaths": 3.0, "idle_s": 2.5, "queue_count": 40.0, "queue_s": 0.5}
    told = values(build_daemon_metrics(figures(numbers={"engine": engine})))
    assert (told["workers{}"], told["workers_busy_ratio{}"], told["worker_deaths_total{}"]) == (4, 0.5, 3)
    assert (told["worker_idle_seconds_total{}"], told["tasks_total{}"], told["task_wait_seconds_total{}"]) == (
        2.5,
        40,
        0.5,
    )


def test_a_reload_that_failed_is_told_until_one_succeeds() -> None:
    told = figures()
    failed = replace(told, status=replace(told.status, reload_failed=True))
    assert [values(build_daemon_metrics(each))["reload_failed{}"] for each in (told, failed)] == [0, 1]


def test_draining_frames_and_rules_are_told() -> None:
    numbers = {"wire": {"malformed": 2.0}, "rules": {"numbers_dense": 16.0}}
    told = values(build_daemon_metrics(figures(numbers=numbers, draining=True)))
    assert (told["draining{}"], told["troubles{}"], told["build_info{version=1.2}"]) == (1, 2, 1)
    assert (told["frames_dropped_total{reason=malformed}"], told["frames_dropped_total{reason=stale}"]) == (2, 0)
    assert told["rule_checks_total{rule=numbers_dense}"] == 16
