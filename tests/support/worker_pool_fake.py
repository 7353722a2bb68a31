"""A worker pool of fake workers, which take tasks and commands and die when a test says so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from streamd.core.counters import ProcessStats
from streamd.daemon.engine.batch_job import BatchJob, RowCost, Task
from streamd.daemon.engine.worker_pool import PoolWorker, WorkerPool, hire_local_workers
from streamd.ipc.slots import RowProgress, SlotStore, WorkerPhase
from streamd.ipc.worker_messages import WorkerCommand, WorkerDied, WorkerReport
from streamd.supervisor.worker_process import WorkerProcess, is_waiting_for_file

NOWHERE = RowProgress(0, 0, WorkerPhase.IDLE, 0)


class WorkerFake:
    """A worker of a generation; `commands` are what it was sent."""

    def __init__(
        self,
        tasks: int = 0,
        *,
        fresh: bool = False,
        alone: bool = False,
        estimated_s: float = 0.0,
        spent_s: float = 0.0,
    ) -> None:
        self.busy_since_s = time.monotonic() - spent_s
        before = cast("Task", SimpleNamespace(estimated_s=estimated_s))
        self.tasks: dict[int, Task] = {-number - 1: before for number in range(tasks)}
        self.is_fresh = fresh
        self.has_suspect = alone
        self.completed_tasks = 0
        self.commands: list[WorkerCommand] = []
        self.row_progress = NOWHERE
        self.is_running = True
        self.was_stopped = False
        self._death: asyncio.Future[WorkerDied] | None = None

    @property
    def given(self) -> list[Task]:
        """What it was given, without what it had before."""
        return [task for number, task in self.tasks.items() if number > 0]

    def send_task(self, task: Task, _slots: SlotStore) -> None:
        self.tasks[task.number] = task
        self.is_fresh, self.has_suspect = False, task.is_suspect

    def send_command(self, command: WorkerCommand) -> None:
        self.commands.append(command)

    def remove_finished_task(self, number: int) -> Task:
        return self.tasks.pop(number)

    def forget_mapped_slots(self, slots: tuple[int, ...]) -> bool:
        return bool(slots)

    @property
    def can_take_suspect(self) -> bool:
        return self.is_fresh

    def compute_capacity(self, tasks_ahead: int) -> int:
        return tasks_ahead

    def take_back_tasks(self, numbers: Iterable[int]) -> list[Task]:
        return [self.tasks.pop(number) for number in numbers]

    def kill_if_waiting_for_stream(self, stream_number: int) -> None:
        task, at = self.tasks.get(self.row_progress.task), self.row_progress
        self.was_stopped |= task is not None and task.stream == stream_number and is_waiting_for_file(at)

    def kill_waiting_process(self) -> None:
        self.was_stopped = True

    def die(self) -> None:
        assert self._death is not None
        self._death.set_result(WorkerDied("killed by SIGKILL", tuple(self.tasks)))

    async def wait_for_exit(self) -> WorkerDied:
        self._death = asyncio.get_running_loop().create_future()
        death = await self._death
        self.is_running = False
        return death

    async def shut_down(self) -> None:
        self.is_running = False

    def close(self) -> None: ...


class PoolRig:
    """A pool of `count` workers in each generation; the rig is its listener."""

    def __init__(self, count: int = 1) -> None:
        self.stats = ProcessStats()
        self.pool = WorkerPool(hire_local_workers(count), SlotStore(), self.stats, self)
        self.started: list[WorkerFake] = []
        self.has_started = asyncio.Event()  # set at the first start after it was cleared
        self.died: list[WorkerFake] = []

    @property
    def workers(self) -> list[WorkerFake]:
        return [cast("WorkerFake", worker) for worker in self.pool.workers]

    def on_worker_started(self, worker: PoolWorker) -> None:
        self.started.append(cast("WorkerFake", worker))
        self.has_started.set()

    def on_worker_reports(self, worker: PoolWorker, reports: Sequence[WorkerReport]) -> None:
        raise AssertionError(worker, reports)

    def on_worker_waiting(self, worker: PoolWorker, progress: RowProgress) -> None:
        raise AssertionError(worker, progress)

    def on_worker_died(self, worker: PoolWorker, death: WorkerDied) -> None:
        assert death.description == "killed by SIGKILL"
        self.died.append(cast("WorkerFake", worker))


def with_workers(*workers: WorkerFake) -> WorkerPool:
    """A pool that does not run and has these workers."""
    pool = PoolRig(0).pool
    pool._generations[0].workers = [cast("PoolWorker", worker) for worker in workers]
    return pool


def new_job(pool: WorkerPool, number: int = 0, tasks_ahead: int | None = None) -> BatchJob:
    """A batch that the pool has begun."""
    job = object.__new__(BatchJob)
    job.stream_number, job.row_cost = number, RowCost()
    if tasks_ahead is not None:
        job.row_cost.tasks_ahead = tasks_ahead
    pool.add_job(job)
    return job


def new_task(job: BatchJob, number: int = 1, *, is_suspect: bool = False) -> Task:
    nothing: Any = np.empty(0)
    return Task(
        number, job.stream_number, 0, 0, 0, nothing, nothing, job=job, queued_s=0.0, is_suspect=is_suspect
    )  # fmt: skip


async def turn() -> None:
    """Lets the loop do all that it has to do now."""
    for _ in range(10):
        await asyncio.sleep(0)


@asynccontextmanager
async def running_real_pool() -> AsyncIterator[PoolRig]:
    """Runs a pool of one real worker; no worker is left at its end."""
    rig = PoolRig()
    running = asyncio.ensure_future(rig.pool.run())
    yield rig
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert rig.workers == []


@asynccontextmanager
async def running_pool(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PoolRig]:
    """Runs a pool of one fake worker a generation; no worker is left at its end."""

    async def start(*_: object) -> WorkerFake:
        return WorkerFake(fresh=True)

    monkeypatch.setattr(WorkerProcess, "start", start)
    async with running_real_pool() as rig:
        await turn()
        assert len(rig.started) == 1
        yield rig
    assert not any(worker.is_running for worker in rig.started)
