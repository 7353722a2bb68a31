"""Generations of workers: the one that begins a batch finishes it, and an earlier one ends with its last batch."""

from __future__ import annotations

import pytest
from support.worker_pool_fake import new_job, new_task, running_pool, turn

from streamd.ipc.worker_messages import CloseStream, UnmapSlots


async def test_tasks_go_to_the_generation_that_began_their_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_pool(monkeypatch) as rig:
        early = new_job(rig.pool)
        rig.pool.start_next_generation()
        await turn()
        rig.pool.switch_to_next_generation()
        late = new_job(rig.pool)
        for job in (early, late):
            rig.pool.queue_tasks(job, [new_task(job)])
        rig.pool.assign_queued_tasks()
        assert [[task.job for task in worker.given] for worker in rig.started] == [[early], [late]]


async def test_an_earlier_generation_ends_with_its_last_batch_and_its_deaths_are_counted_on(
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


async def test_a_generation_that_has_nothing_to_finish_ends_at_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
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
        rig.pool.queue_tasks(job, [new_task(job)])
        rig.pool.assign_queued_tasks()
        assert len(first.given) == 1


async def test_all_generations_are_told_what_is_over_and_only_the_newest_what_begins(
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
