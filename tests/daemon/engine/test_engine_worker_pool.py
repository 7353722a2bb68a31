"""The worker pool: which worker gets a task, replacement of dead workers, and generations of workers."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from typing import Any

import pytest
from support.worker_pool_fake import WorkerFake, new_job, new_task, running_pool, running_real_pool, turn, with_workers

from streamd.daemon.engine import worker_pool
from streamd.ipc.slots import RowProgress, SlotStore, WorkerPhase
from streamd.ipc.worker_messages import CloseStream, UnmapSlots
from streamd.limits import MAX_TASKS_AHEAD
from streamd.supervisor.worker_process import WorkerProcess

LIMIT_S = 20.0


def given(*workers: WorkerFake, tasks_ahead: int = MAX_TASKS_AHEAD, is_suspect: bool = False) -> list[int]:
    """How many of these workers get one more task."""
    pool = with_workers(*workers)
    job = new_job(pool, tasks_ahead=tasks_ahead)
    pool.requeue_task(new_task(job, is_suspect=is_suspect))
    pool.assign_queued_tasks()
    return [len(worker.given) for worker in workers]


def test_the_worker_with_the_fewest_tasks_gets_the_next() -> None:
    assert given(WorkerFake(1), WorkerFake(0), WorkerFake(1)) == [0, 1, 0]


def test_the_worker_whose_tasks_take_the_least_time_gets_the_next() -> None:
    assert given(WorkerFake(1, estimated_s=50.0), WorkerFake(3, estimated_s=0.01)) == [0, 1]


def test_a_task_waits_for_a_worker_that_has_enough_rather_than_for_one_that_is_at_a_slow_sample() -> None:
    slow = WorkerFake(1, estimated_s=0.01, spent_s=5.0)
    assert given(slow, WorkerFake(1, estimated_s=0.01)) == [0, 1]
    assert given(slow, WorkerFake(MAX_TASKS_AHEAD, estimated_s=0.01)) == [0, 0]


def test_no_worker_gets_more_tasks_than_the_limit() -> None:
    assert given(WorkerFake(MAX_TASKS_AHEAD), WorkerFake(MAX_TASKS_AHEAD)) == [0, 0]


def test_no_worker_gets_more_than_one_expensive_task_ahead() -> None:
    assert given(WorkerFake(2), WorkerFake(1), tasks_ahead=2) == [0, 1]
    assert given(WorkerFake(2), WorkerFake(3), tasks_ahead=2) == [0, 0]


def test_a_worker_with_a_suspect_gets_no_other_task() -> None:
    assert given(WorkerFake(1, alone=True), WorkerFake(1)) == [0, 1]
    assert given(WorkerFake(1, alone=True)) == [0]


def test_a_suspect_goes_to_a_worker_that_never_had_a_task() -> None:
    assert given(WorkerFake(0), WorkerFake(0, fresh=True), is_suspect=True) == [0, 1]
    assert given(WorkerFake(0), is_suspect=True) == [0]


def test_a_waiting_suspect_does_not_delay_other_tasks() -> None:
    worker = WorkerFake(0)
    pool = with_workers(worker)
    job = new_job(pool)
    pool.queue_tasks([new_task(job, 1, is_suspect=True)])
    pool.queue_tasks([new_task(job, 2), new_task(job, 3)])
    assert repr(pool) == "<WorkerPool 1 worker, 0 busy, 3 queued>"
    pool.assign_queued_tasks()
    assert [task.number for task in worker.given] == [2, 3]
    assert repr(pool) == "<WorkerPool 1 worker, 1 busy, 1 queued>"


def test_a_requeued_task_is_assigned_first() -> None:
    worker = WorkerFake(0)
    pool = with_workers(worker)
    job = new_job(pool)
    pool.queue_tasks([new_task(job, 1), new_task(job, 2)])
    pool.requeue_task(new_task(job, 3))
    pool.assign_queued_tasks()
    assert [task.number for task in worker.given] == [3, 1, 2]


def test_removing_the_tasks_of_a_batch_keeps_those_of_others() -> None:
    worker = WorkerFake(0)
    pool = with_workers(worker)
    stays, goes = new_job(pool), new_job(pool)
    for job, number in ((goes, 1), (stays, 2), (goes, 3)):
        pool.queue_tasks([new_task(job, number)])
    pool.queue_tasks([new_task(goes, 4, is_suspect=True)])
    assert pool.remove_queued_tasks(goes) == 3
    worker.is_fresh = True
    pool.assign_queued_tasks()
    assert [task.number for task in worker.given] == [2]


def test_a_worker_that_has_a_task_or_has_just_had_one_is_busy() -> None:
    speaker = WorkerFake(0)
    workers = WorkerFake(2), WorkerFake(0), WorkerFake(1), speaker
    pool: Any = with_workers(*workers)
    assert [pool.busy_fraction(speaker), pool.busy_fraction(None)] == [0.75, 0.5]
    assert with_workers().busy_fraction(None) == 0


def test_only_the_workers_that_wait_for_a_streams_files_are_replaced() -> None:
    waiting, decoding, other, done = (WorkerFake() for _ in range(4))
    pool = with_workers(waiting, decoding, other, done)
    for task, (worker, stream, phase) in enumerate(
        ((waiting, 7, WorkerPhase.READING), (decoding, 7, WorkerPhase.DECODING), (other, 8, WorkerPhase.READING)),
        start=1,
    ):
        worker.send_task(new_task(new_job(pool, stream), task), SlotStore())
        worker.row_progress = RowProgress(task, 0, phase, 0)
    done.row_progress = RowProgress(99, 0, WorkerPhase.READING, 0)
    pool.kill_workers_waiting_for_files(7)
    assert [worker.was_stopped for worker in (waiting, decoding, other, done)] == [True, False, False, False]


def test_slots_are_dropped_by_every_worker() -> None:
    worker = WorkerFake()
    with_workers(worker).unmap_slots_in_workers((1, 2))
    assert worker.commands == [UnmapSlots((1, 2))]


async def test_a_dead_worker_is_replaced_after_its_listener_has_its_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "WORKER_RESPAWN_S", 0.001)
    async with running_pool(monkeypatch) as rig:
        (first,) = rig.started
        job = new_job(rig.pool)
        rig.pool.queue_tasks([new_task(job)])
        rig.pool.assign_queued_tasks()
        told: list[Any] = []

        def note(worker: WorkerFake, _death: object) -> None:
            told.append((worker, list(worker.tasks), rig.workers, rig.pool.death_count))

        monkeypatch.setattr(rig, "on_worker_died", note)
        rig.has_started.clear()
        first.die()
        await asyncio.wait_for(rig.has_started.wait(), LIMIT_S)
        assert told == [(first, [1], [], 1)]
        assert rig.workers == [rig.started[1]]


async def test_a_real_worker_that_is_killed_is_replaced_and_the_death_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_pool, "WORKER_RESPAWN_S", 0.001)
    async with running_real_pool() as rig:  # that no process is left, conftest sees to
        await asyncio.wait_for(rig.has_started.wait(), LIMIT_S)
        rig.has_started.clear()
        os.kill(rig.pool.workers[0].pid, signal.SIGKILL)
        await asyncio.wait_for(rig.has_started.wait(), LIMIT_S)
        assert rig.died == rig.started[:1]
        assert (rig.workers, rig.pool.death_count) == (rig.started[1:], 1)
        assert rig.stats.values_by_group()["engine"]["worker_deaths"] == 1


@pytest.mark.long
@pytest.mark.parametrize("code", [errno.EAGAIN, errno.EMFILE])
async def test_a_worker_that_cannot_be_started_now_is_started_later(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(worker_pool, "WORKER_RESPAWN_MAX_S", 0.001)
    start, refusals = WorkerProcess.start, [OSError(code, os.strerror(code))] * 2

    async def refused(*arguments: Any) -> WorkerProcess[Any]:
        if refusals:
            raise refusals.pop()
        return await start(*arguments)

    monkeypatch.setattr(WorkerProcess, "start", refused)
    async with running_real_pool() as rig:
        await asyncio.wait_for(rig.has_started.wait(), LIMIT_S)
    assert refusals == []


# --- generations: the one that begins a batch finishes it, and an earlier one ends with its last batch


async def test_tasks_go_to_the_generation_that_began_their_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_pool(monkeypatch) as rig:
        early = new_job(rig.pool)
        rig.pool.start_next_generation()
        await turn()
        rig.pool.switch_to_next_generation()
        late = new_job(rig.pool)
        for job in (early, late):
            rig.pool.queue_tasks([new_task(job)])
        rig.pool.assign_queued_tasks()
        assert [[task.job for task in worker.given] for worker in rig.started] == [[early], [late]]


async def test_an_earlier_generation_ends_with_its_last_batch_and_its_deaths_still_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running_pool(monkeypatch) as rig:
        jobs = new_job(rig.pool), new_job(rig.pool)
        rig.pool.start_next_generation()
        await turn()
        rig.pool.switch_to_next_generation()
        rig.pool._generations[0].deaths = 2
        first, second = rig.started
        for job, is_running in zip(jobs, (True, False), strict=True):
            rig.pool.remove_job(job)
            await turn()
            assert (first.is_running, second.is_running) == (is_running, True)
        assert rig.pool.death_count == 2
        assert rig.workers == [second]


async def test_a_generation_without_batches_ends_at_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_pool(monkeypatch) as rig:
        rig.pool.start_next_generation()
        await turn()
        rig.pool.switch_to_next_generation()
        await turn()
        assert [worker.is_running for worker in rig.started] == [False, True]


async def test_a_generation_that_is_discarded_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_pool(monkeypatch) as rig:
        rig.pool.start_next_generation()
        await turn()
        first, second = rig.started
        assert rig.workers == [first]
        rig.pool.discard_next_generation()
        await turn()
        rig.pool.send_to_all_workers(CloseStream(3))
        assert (first.commands, second.commands) == ([CloseStream(3)], [])
        assert (first.is_running, second.is_running) == (True, False)
        job = new_job(rig.pool)
        rig.pool.queue_tasks([new_task(job)])
        rig.pool.assign_queued_tasks()
        assert len(first.given) == 1


async def test_commands_go_to_all_generations_or_to_the_current_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running_pool(monkeypatch) as rig:
        new_job(rig.pool)
        rig.pool.start_next_generation()
        await turn()
        rig.pool.send_to_all_workers(CloseStream(2))
        rig.pool.send_to_newest_workers(CloseStream(9))
        rig.pool.switch_to_next_generation()
        rig.pool.send_to_all_workers(CloseStream(3))
        rig.pool.unmap_slots_in_workers((1, 2))
        common = [CloseStream(3), UnmapSlots((1, 2))]
        first, second = rig.started
        assert first.commands == [CloseStream(2), CloseStream(9), *common]
        assert second.commands == [CloseStream(2), *common]
