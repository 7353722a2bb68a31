"""Starts workers, gives them tasks, and replaces those that die.

Workers come in generations, since a process can import only one version of a transform. A new generation starts beside
the present one. After the switch it begins all batches, and the one before it ends with the last batch that it began.
"""

from __future__ import annotations

import asyncio
import errno
import importlib.util
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, Self

import msgspec

from streamd.config.schema import Config
from streamd.core import log
from streamd.core.cluster_settings import ClusterSettings
from streamd.core.counters import ProcessStats
from streamd.core.status import ClusterStatus
from streamd.core.text import format_count
from streamd.daemon.engine.batch_job import BatchJob, Task
from streamd.errors import MissingExtraError
from streamd.ipc.child import start_linked_child
from streamd.ipc.slots import SlotStore
from streamd.ipc.worker_messages import (
    ClusterChanged,
    TransformPlace,
    UnmapSlots,
    WorkerCommand,
    WorkerDied,
    WorkerReport,
)
from streamd.limits import (
    BRIDGE_LEAVE_S,
    NODE_TASKS_AHEAD,
    ROW_DEADLINE_S,
    WORKER_ENVIRONMENT,
    WORKER_RESPAWN_MAX_S,
    WORKER_RESPAWN_S,
)
from streamd.supervisor.worker_process import WorkerLink, WorkerListener, WorkerProcess

_PASSING_ERRORS: Final = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})  # starting a process

PoolWorker = WorkerLink[Task]


class PoolListener(WorkerListener, Protocol):
    """Receives the events of the workers of a pool. All calls come on the event loop's thread."""

    def on_worker_started(self, worker: Any) -> None:
        """A worker has started and knows no stream yet."""

    def on_worker_died(self, worker: Any, death: WorkerDied) -> None:
        """A worker has ended; `worker.take_back_tasks(death.tasks)` are those that it has not finished."""


@dataclass(frozen=True, slots=True)
class HiredWorkers:
    """The workers that an engine gets: `count` at a time, each from `start`, which may raise OSError.

    `lock_caches`: they write to the caches of this host, of which the daemon then holds the locks. Nodes of a cluster
    lock those of their own.
    """

    count: int
    start: Callable[[int, WorkerListener], Awaitable[PoolWorker]]
    lock_caches: bool = True


def hire_local_workers(count: int, row_deadline_s: float = ROW_DEADLINE_S) -> HiredWorkers:
    """Returns decode processes of this host."""

    async def start_worker(place: int, listener: WorkerListener) -> PoolWorker:
        return await WorkerProcess[Task].start(place, listener, row_deadline_s)

    return HiredWorkers(count, start_worker)


@dataclass(slots=True, eq=False)
class _WorkerGeneration:
    """Workers that started for the same transforms, and the tasks that are queued for them."""

    workers: list[PoolWorker] = field(default_factory=list)
    queue: deque[Task] = field(default_factory=deque)
    suspects: deque[Task] = field(default_factory=deque)
    deaths: int = 0
    running: asyncio.Task[None] | None = None

    def take_next_task(self) -> tuple[PoolWorker, Task] | None:
        """Removes the next task from its queue, and returns it with its worker; None when no worker may have one.

        A suspect goes to a worker that was never given a task. It exists because a worker died, and the worker that
        starts in its place is fresh, so no suspect waits for ever. Other tasks go to the worker with the least to do,
        and wait while it has enough: beside it another may have been at one slow sample for long.
        """
        if self.suspects:
            fresh = next((worker for worker in self.workers if worker.can_take_suspect), None)
            if fresh is not None:
                return fresh, self.suspects.popleft()
        if not self.queue:
            return None
        # A worker with a suspect gets no other task, so its death tells of that sample alone.
        open_to_all = [worker for worker in self.workers if not worker.has_suspect]
        if not open_to_all:
            return None
        now_s = time.monotonic()
        worker = min(open_to_all, key=lambda each: _estimate_load(each, now_s))
        tasks_ahead = self.queue[0].job.row_cost.tasks_ahead
        if len(worker.tasks) >= worker.compute_capacity(tasks_ahead):
            return None
        return worker, self.queue.popleft()

    def send_commands(self, commands: Sequence[WorkerCommand]) -> None:
        for command in commands:
            for worker in self.workers:
                worker.send_command(command)

    def cancel(self) -> None:
        if self.running is not None:
            self.running.cancel()


def _estimate_load(worker: PoolWorker, now_s: float) -> tuple[float, int]:
    """Returns the seconds that a worker's tasks will take, as far as that is known, and their number.

    What has taken longer than it should is expected to take as much longer again.
    """
    if not worker.tasks:
        return 0.0, 0
    spent_s = now_s - worker.busy_since_s
    first_s, *others_s = (task.estimated_s for task in worker.tasks.values())
    return abs(first_s - spent_s) + sum(others_s), len(worker.tasks)


class WorkerPool:
    """The workers of each generation, from `run` until it is cancelled. Lives on the event loop.

    `imported_transforms` are the transforms that the newest generation has imported, or tried to.
    """

    def __init__(self, hired: HiredWorkers, slots: SlotStore, stats: ProcessStats, listener: PoolListener) -> None:
        self._hired = hired
        self._slots = slots
        self._stats = stats
        self._listener = listener
        self._queue_waits = stats.find_stage_times("engine", "queue")
        self._group: asyncio.TaskGroup | None = None
        self._generations = [_WorkerGeneration()]  # the last one begins batches, those before it finish theirs
        self._next_generation: _WorkerGeneration | None = None  # starting; begins no batch before the switch
        self._jobs: dict[BatchJob, _WorkerGeneration] = {}  # under way, each with the one that began it
        self._ended_deaths = 0  # in generations that have ended
        self.imported_transforms: set[TransformPlace] = set()

    def __repr__(self) -> str:
        queued = sum(len(each.queue) + len(each.suspects) for each in self._generations)
        busy = sum(bool(worker.tasks) for worker in self.workers)
        return f"<WorkerPool {format_count(len(self.workers), 'worker')}, {busy} busy, {queued} queued>"

    @property
    def workers(self) -> Sequence[PoolWorker]:
        """All workers that begin or finish batches."""
        return [worker for generation in self._generations for worker in generation.workers]

    @property
    def death_count(self) -> int:
        """How many workers have died, in these generations and earlier ones."""
        return self._ended_deaths + sum(generation.deaths for generation in self._generations)

    def count_remote_death(self) -> None:
        """Counts the death of a decode process that a worker replaces by itself."""
        self._ended_deaths += 1
        self._stats.add_count("engine", "worker_deaths")

    def busy_fraction(self, reporting_worker: PoolWorker | None) -> float:
        """Returns the fraction of the newest workers that have a task, 0 to 1. `reporting_worker` counts as such."""
        workers = self._generations[-1].workers
        return sum([bool(worker.tasks) or worker is reporting_worker for worker in workers]) / max(1, len(workers))

    # --- batches and their tasks

    def add_job(self, job: BatchJob) -> None:
        """Adds a batch to the newest generation, whose workers fill it."""
        self._jobs[job] = self._generations[-1]

    def remove_job(self, job: BatchJob) -> None:
        """Removes a batch that has no task left. An earlier generation ends with its last batch."""
        self._end_generation_if_done(self._jobs.pop(job))

    def find_stream_jobs(self, stream_number: int) -> list[BatchJob]:
        """Returns the batches under way of a stream's number."""
        return [job for job in self._jobs if job.stream_number == stream_number]

    def queue_tasks(self, tasks: Sequence[Task]) -> None:
        """Queues tasks after all others of their kind."""
        for task in tasks:
            generation = self._jobs[task.job]
            (generation.suspects if task.is_suspect else generation.queue).append(task)

    def requeue_task(self, task: Task) -> None:
        """Queues a task ahead of all others of its kind."""
        generation = self._jobs[task.job]
        (generation.suspects if task.is_suspect else generation.queue).appendleft(task)

    def remove_queued_tasks(self, job: BatchJob) -> int:
        """Removes a batch's tasks from the queues; returns how many there were."""
        generation, removed = self._jobs[job], 0
        for tasks in (generation.queue, generation.suspects):
            kept = [task for task in tasks if task.job is not job]
            removed += len(tasks) - len(kept)
            tasks.clear()
            tasks.extend(kept)
        return removed

    def assign_queued_tasks(self) -> None:
        """Sends queued tasks to the workers that may have more."""
        for generation in self._generations:
            while assignment := generation.take_next_task():
                worker, task = assignment
                self._queue_waits.add_runs(time.monotonic() - task.queued_s)
                worker.send_task(task, self._slots)

    # --- commands to workers

    def send_to_all_workers(self, *commands: WorkerCommand) -> None:
        """Sends commands to every worker, including those of a generation that is starting."""
        starting = [] if self._next_generation is None else [self._next_generation]
        for generation in [*self._generations, *starting]:
            generation.send_commands(commands)

    def send_to_newest_workers(self, *commands: WorkerCommand) -> None:
        """Sends commands to the workers that begin batches."""
        self._generations[-1].send_commands(commands)

    def unmap_slots_in_workers(self, slots: tuple[int, ...]) -> None:
        """Has every worker unmap slots that are about to be closed."""
        # A generation that is starting has had no task, so its workers have mapped nothing.
        for worker in self.workers:
            if worker.forget_mapped_slots(slots):
                worker.send_command(UnmapSlots(slots))

    def kill_workers_waiting_for_files(self, stream_number: int) -> None:
        """Kills the workers that wait for files of this stream's number; others start in their place."""
        for worker in self.workers:
            worker.kill_if_waiting_for_stream(stream_number)

    # --- generations

    def start_next_generation(self) -> None:
        """Starts workers beside the present ones, which begin all batches until the switch. One start at a time."""
        self._next_generation = _WorkerGeneration()
        self._start_generation(self._next_generation)

    def switch_to_next_generation(self) -> None:
        """Lets the new workers begin all batches from now on."""
        assert self._next_generation is not None  # noqa: S101 - it was started
        earlier = self._generations[-1]
        self._generations.append(self._next_generation)
        self._next_generation = None
        self._end_generation_if_done(earlier)

    def discard_next_generation(self) -> None:
        """Ends the new workers; the present ones stay."""
        generation, self._next_generation = self._next_generation, None
        if generation is not None:
            generation.cancel()

    def _end_generation_if_done(self, generation: _WorkerGeneration) -> None:
        # The newest generation stays without batches; an earlier one stays while a batch that it began is under way.
        if generation is self._generations[-1] or generation in self._jobs.values():
            return
        self._generations.remove(generation)
        self._ended_deaths += generation.deaths
        generation.cancel()

    # --- processes

    async def run(self) -> None:
        """Keeps all processes alive until cancelled; none is left when it returns."""
        async with asyncio.TaskGroup() as self._group:
            self._start_generation(self._generations[-1])

    def _start_generation(self, generation: _WorkerGeneration) -> None:
        assert self._group is not None  # noqa: S101 - the pool runs
        generation.running = self._group.create_task(self._run_generation(generation), name="workers")

    async def _run_generation(self, generation: _WorkerGeneration) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for place in range(self._hired.count):
                    group.create_task(self._keep_worker_running(generation, place), name=f"worker-{place}")
        finally:
            # Workers have manifests open, or are about to open them. The caller removes these files after this
            # returns, so every process has to have ended, also when this is cancelled.
            workers, generation.workers = generation.workers, []
            await asyncio.gather(*(worker.shut_down() for worker in workers))

    async def _keep_worker_running(self, generation: _WorkerGeneration, place: int) -> None:
        """Starts a worker, and another one when it dies. Pauses double while workers die before they finish a task."""
        pause_s = WORKER_RESPAWN_S
        while True:
            try:
                worker = await self._hired.start(place, self._listener)
            except OSError as error:
                # The host may have no room for a process now. Any other error ends the daemon.
                if error.errno not in _PASSING_ERRORS:
                    raise
                text = f"{error.strerror}; trying again in {WORKER_RESPAWN_MAX_S:g} s"
                log.warning("worker.denied", text, place=place)
                await asyncio.sleep(WORKER_RESPAWN_MAX_S)
                continue
            generation.workers.append(worker)
            self._listener.on_worker_started(worker)
            # When this is cancelled, the worker is still in the list, and `_run_generation` shuts it down.
            death = await worker.wait_for_exit()
            # Removed before the listener is called: it queues tasks again, which must not go to the dead worker.
            generation.workers.remove(worker)
            generation.deaths += 1
            self._stats.add_count("engine", "worker_deaths")
            pause_s = WORKER_RESPAWN_S if worker.completed_tasks else min(pause_s * 2, WORKER_RESPAWN_MAX_S)
            log.warning(
                "worker.died", f"a worker died, {death.description}; the next starts in {pause_s:g} s", place=place
            )
            self._listener.on_worker_died(worker, death)
            worker.close()
            await asyncio.sleep(pause_s)


# --- The bridge to a cluster as the engine sees it: one worker whose capacity grows and shrinks with the nodes.


class BridgeLink(WorkerLink[Task]):
    """A running bridge. It judges the deaths of its nodes' processes itself, and tries suspects in fresh ones."""

    cluster: ClusterStatus | None = None
    leave_s = BRIDGE_LEAVE_S

    @classmethod
    async def start(cls, listener: WorkerListener, settings: ClusterSettings) -> Self:
        """Starts `python -m streamd.ray` with a new socket pair. Raises OSError."""
        process, link = await start_linked_child(
            "streamd.ray", msgspec.json.encode(settings).decode(), environment=WORKER_ENVIRONMENT
        )
        return cls(process, link, listener)

    @property
    def can_take_suspect(self) -> bool:
        """See WorkerLink."""
        return len(self.tasks) < self.compute_capacity(0)

    def compute_capacity(self, tasks_ahead: int) -> int:
        """See WorkerLink. What has to travel is given earlier, whatever a task costs."""
        del tasks_ahead
        return NODE_TASKS_AHEAD * (self.cluster.workers if self.cluster is not None else 0)

    async def wait_for_exit(self) -> WorkerDied:
        """See WorkerLink. Ray ends its process a minute after it has lost the cluster's head."""
        death = await super().wait_for_exit()
        return WorkerDied(f"the bridge to the cluster, {death.description}", death.tasks)

    def _handle_own_reports(self, reports: Sequence[WorkerReport]) -> None:
        for report in reports:
            if isinstance(report, ClusterChanged):
                self.cluster = report.cluster


def hire_workers(config: Config) -> HiredWorkers:
    """Returns the workers that a configuration names. Raises MissingExtraError where ray is not installed."""
    if config.engine.kind == "local":
        return hire_local_workers(config.worker_count)
    if importlib.util.find_spec("ray") is None:
        raise MissingExtraError("ray", "ray", "engine: ray")
    # The nodes of a cluster are one worker.
    settings = config.engine.cluster_settings

    async def start_bridge(_place: int, listener: WorkerListener) -> PoolWorker:
        return await BridgeLink.start(listener, settings)

    return HiredWorkers(1, start_bridge, lock_caches=False)
