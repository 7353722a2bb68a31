"""The tasks of a batch: at first, as a retry and after new verdicts; and the time of a row, which sizes them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from support.opened_streams import Serve

from streamd.core.counters import ProcessStats
from streamd.core.sampler import SUBSTITUTED, BadSample
from streamd.core.spec import BatchKey
from streamd.daemon.engine import batch_job
from streamd.daemon.engine.batch_job import BatchJob, RowCost, Task
from streamd.daemon.streams.served_stream import ServedStream
from streamd.ipc.worker_messages import CachePlace, TaskDone
from streamd.limits import (
    MAX_TASKS_AHEAD,
    TASK_ATTEMPTS,
    TASK_GIVE_UP_S,
    TASK_ROWS,
    TASK_S,
    TASKS_AHEAD_PER_WORKER,
    WORKER_RESPAWN_MAX_S,
    WORKER_RESPAWN_S,
)

ROWS = 2 * TASK_ROWS + 6


@pytest.fixture
def stream(serve_images: Serve) -> ServedStream:
    """One batch of 70 rows."""
    return serve_images({"cat": ROWS}, batch_size=ROWS)


@pytest.fixture
def job(stream: ServedStream) -> BatchJob:
    return BatchJob(BatchKey("train", 1, 0), stream, 3, 9, 4096)


def test_a_batch_is_split_into_tasks_that_cover_it_once(job: BatchJob, stream: ServedStream) -> None:
    tasks = job.make_first_tasks(itertools.count(5))
    assert [task.number for task in tasks] == [5, 6, 7]
    assert [task.rows.size for task in tasks] == [TASK_ROWS, TASK_ROWS, 6]
    assert np.concatenate([task.rows for task in tasks]).tolist() == list(range(ROWS))
    assert np.concatenate([task.ids for task in tasks]).tolist() == stream.compute_planned_ids(1, 0).tolist()
    assert {(task.stream, task.slot, task.slot_bytes, task.batch_rows) for task in tasks} == {(3, 9, 4096, ROWS)}


def test_a_batch_of_expensive_rows_is_split_into_small_tasks(job: BatchJob, stream: ServedStream) -> None:
    job.row_cost.add_measurement(2, 200_000_000)
    tasks = job.make_first_tasks(itertools.count())
    assert {task.rows.size for task in tasks} == {2}
    assert np.concatenate([task.ids for task in tasks]).tolist() == stream.compute_planned_ids(1, 0).tolist()


def test_the_first_batch_is_split_by_the_sizes_of_its_files(job: BatchJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_job, "_NS_A_BYTE", 1e6)
    assert [task.rows.size for task in job.make_first_tasks(itertools.count())] == [1] * ROWS


def test_nothing_is_refilled_without_bad_samples(job: BatchJob) -> None:
    assert job.make_refill_tasks(itertools.count()) == []


def test_a_new_bad_sample_refills_its_rows_and_no_others(job: BatchJob, stream: ServedStream) -> None:
    planned = stream.compute_planned_ids(1, 0)
    stream.quarantine.append_new_bad_samples([BadSample(int(planned[row]), "bad") for row in (4, 40)])
    (task,) = job.make_refill_tasks(itertools.count(50))
    assert (task.number, task.rows.tolist(), task.ids.tolist()) == (50, [4, 40], planned[[5, 41]].tolist())
    assert np.flatnonzero(job.row_status == SUBSTITUTED).tolist() == [4, 40]
    assert job.make_refill_tasks(itertools.count()) == []


def test_a_bad_substitute_refills_every_row_it_was_used_for(job: BatchJob, stream: ServedStream) -> None:
    planned = stream.compute_planned_ids(1, 0)
    stream.quarantine.append_new_bad_samples([BadSample(int(planned[4]), "bad")])
    job.make_refill_tasks(itertools.count())
    stream.quarantine.append_new_bad_samples([BadSample(int(planned[5]), "bad")])
    (task,) = job.make_refill_tasks(itertools.count())
    assert (task.rows.tolist(), task.ids.tolist()) == ([4, 5], planned[[6, 6]].tolist())


def test_a_bad_sample_of_another_batch_refills_nothing(serve_images: Serve) -> None:
    stream = serve_images({"cat": 16})
    job = BatchJob(BatchKey("train", 0, 0), stream, 0, 1, 4096)
    stream.quarantine.append_new_bad_samples([BadSample(int(stream.compute_planned_ids(0, 1)[0]), "bad")])
    assert job.make_refill_tasks(itertools.count()) == []


def test_passing_failures_are_retried_and_lasting_ones_are_not(job: BatchJob) -> None:
    first, *_ = job.make_first_tasks(itertools.count())
    passing, lasting = (int(first.ids[row]) for row in (2, 3))
    bad = (BadSample(passing, "I/O error", lasting=False), BadSample(lasting, "damaged", lasting=True))
    task = job.make_retry_task(first, bad, itertools.count(9))
    assert (task.number, task.rows.tolist(), task.ids.tolist()) == (9, [2], [passing])
    assert (task.failures, first.failures) == (1, 0)


def test_a_suspect_gets_a_task_of_its_own(job: BatchJob, stream: ServedStream) -> None:
    planned = stream.compute_planned_ids(1, 0)
    stream.quarantine.append_new_bad_samples([BadSample(int(planned[4]), "bad")])  # row 5 stands in for row 4 now
    fresh = BatchJob(job.key, stream, 3, 9, 4096)
    first, *_ = fresh.make_first_tasks(itertools.count())
    alone, others = first.split_off_suspect(int(planned[5]), itertools.count(90))
    (rest,) = others
    assert (alone.rows.tolist(), alone.ids.tolist()) == ([4, 5], planned[[5, 5]].tolist())
    assert rest.rows.tolist() == [row for row in range(TASK_ROWS) if row not in {4, 5}]
    assert rest.ids.tolist() == planned[rest.rows].tolist()
    assert {alone.number, rest.number} == {90, 91}
    assert (alone.is_suspect, rest.is_suspect) == (True, False)


def test_a_task_of_the_suspect_alone_is_not_split_further(job: BatchJob) -> None:
    first, *_ = job.make_first_tasks(itertools.count())
    alone, _ = first.split_off_suspect(int(first.ids[0]), itertools.count(90))
    again, others = alone.split_off_suspect(int(first.ids[0]), itertools.count(92))
    assert (again.rows.tolist(), others) == ([0], [])


def test_a_task_is_given_up_after_enough_deaths_over_enough_time(job: BatchJob) -> None:
    task, *_ = job.make_first_tasks(itertools.count())
    pauses_s = []
    for death in range(TASK_ATTEMPTS):
        assert not task.has_killed_too_many_workers(100.0 + TASK_GIVE_UP_S)
        task = task.with_one_more_death(100.0 + death)
        pauses_s.append(task.retry_delay_s)
    assert (task.deaths, task.first_death_s) == (TASK_ATTEMPTS, 100.0)
    assert [task.has_killed_too_many_workers(100.0 + after_s) for after_s in (TASK_GIVE_UP_S - 1, TASK_GIVE_UP_S)] == [
        False,
        True,
    ]
    assert (pauses_s[0], pauses_s[1], pauses_s[-1]) == (0, WORKER_RESPAWN_S, WORKER_RESPAWN_MAX_S)
    assert pauses_s == sorted(pauses_s)


def test_a_suspect_inherits_the_deaths_of_its_task(job: BatchJob) -> None:
    first, *_ = job.make_first_tasks(itertools.count())
    alone, (rest,) = first.with_one_more_death(5.0).split_off_suspect(int(first.ids[0]), itertools.count(90))
    assert [(each.deaths, each.queued_s) for each in (alone, rest)] == [(1, first.queued_s)] * 2


# --- what a finished task leaves behind


def task_of(job: BatchJob, rows: int) -> Task:
    """The first rows of a batch."""
    places, ids = np.arange(rows, dtype=np.uint16), np.arange(rows, dtype=np.int64)
    return Task(1, 0, 1, 4096, 32, places, ids, job=job, queued_s=0.0)


@pytest.mark.parametrize("cached", [False, True])
def test_cache_hits_and_misses_are_counted_when_there_is_a_cache(stream: ServedStream, *, cached: bool) -> None:
    stats = ProcessStats()
    stream = replace(stream, cache=CachePlace("", None) if cached else None)
    job = BatchJob(BatchKey("train", 0, 0), stream, 0, 1, 4096)
    task = task_of(job, 5)
    task.record_report(TaskDone(1, 10**9, 2 * 10**9, 0, gathered=3), stats)
    numbers = stats.values_by_group()["stream.train"]
    assert (numbers["read_count"], numbers["decode_count"]) == (5, 5)
    assert [numbers.get(f"cache_{each}") for each in ("hits", "misses")] == ([3, 2] if cached else [None, None])


MS = 10**6
AWAY = BadSample(0, "gone", lasting=False, away=True)


@pytest.mark.parametrize(
    "report",
    [
        TaskDone(1, 0, 0, 0, bad=(AWAY,) * 32),
        TaskDone(1, 0, MS, 0, bad=(AWAY,)),
        TaskDone(1, 0, MS, 0, gathered=32),
        TaskDone(1, 0, 100 * MS, 0, gathered=31),
    ],
    ids=["unopened", "away", "held", "all but one held"],
)
def test_rows_that_were_not_decoded_do_not_lower_the_row_cost(stream: ServedStream, report: TaskDone) -> None:
    job = BatchJob(BatchKey("train", 0, 0), stream, 0, 1, 4096)
    task = task_of(job, 32)
    job.row_cost.add_measurement(2, 200 * MS)
    task.record_report(report, ProcessStats())
    assert job.row_cost.task_rows == 2


def measured_cost(rows: int, took_ms: float) -> RowCost:
    cost = RowCost()
    cost.add_measurement(rows, int(took_ms * MS))
    return cost


@pytest.mark.parametrize("row_ms", [0.05, 1, 7])
def test_quick_rows_make_tasks_of_the_largest_size(row_ms: float) -> None:
    cost = measured_cost(TASK_ROWS, TASK_ROWS * row_ms)
    assert (cost.task_rows, cost.tasks_ahead) == (TASK_ROWS, MAX_TASKS_AHEAD)


@pytest.mark.parametrize(("row_ms", "rows"), [(25, 10), (100, 2), (200, 1), (4000, 1)])
def test_slow_rows_make_tasks_that_end_in_time(row_ms: float, rows: int) -> None:
    cost = measured_cost(8, 8 * row_ms)
    assert (cost.task_rows, cost.tasks_ahead) == (rows, TASKS_AHEAD_PER_WORKER)
    assert rows == 1 or rows * row_ms <= TASK_S * 1000


def test_the_size_of_files_decides_until_a_row_was_measured() -> None:
    cost = RowCost()
    cost.estimate_from_bytes(38_000)
    assert cost.task_rows == TASK_ROWS
    cost.estimate_from_bytes(24_000_000)
    assert (cost.task_rows, cost.is_known) == (1, False)
    cost.add_measurement(1, MS)
    assert (cost.task_rows, cost.is_known) == (TASK_ROWS, True)


def test_one_slow_row_among_many_is_forgotten_soon() -> None:
    cost = measured_cost(32, 32)
    cost.add_measurement(1, 1000 * MS)
    assert cost.task_rows < TASK_ROWS
    for _ in range(20):
        cost.add_measurement(cost.task_rows, cost.task_rows * MS)
    assert cost.task_rows == TASK_ROWS


def test_cached_rows_count_until_a_row_was_decoded() -> None:
    cost = RowCost()
    cost.estimate_from_bytes(24_000_000)
    cost.add_measurement(32, MS, are_cached=True)
    assert (cost.task_rows, cost.tasks_ahead) == (TASK_ROWS, MAX_TASKS_AHEAD)
    cost.add_measurement(1, 100 * MS)
    assert cost.task_rows == 2
    cost.add_measurement(32, MS, are_cached=True)
    assert cost.task_rows == 2
