"""The workers of this host: as many processes as there are places, each watched, and replaced when it dies.

Crews of workers that take over from each other. A batch is finished by the shift that began it.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from streamd.core import log
from streamd.core.counters import Stats
from streamd.daemon.engine.batch_job import Job, Production
from streamd.daemon.engine.crashes import Death
from streamd.daemon.engine.worker_handle import Listener, WorkerProcess
from streamd.ipc.worker_messages import Command, DropSlots, TransformPlace
from streamd.limits import WORKER_RESPAWN_MAX_S, WORKER_RESPAWN_S

_PASSING: Final = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})  # of starting a process
Give = Callable[[WorkerProcess, Job], None]


@dataclass(frozen=True, slots=True)
class Employer:
    """Who is told what happens to the workers: one came, one said something, one died with its tasks unfinished."""

    came: Callable[[WorkerProcess], None]
    listener: Listener
    died: Callable[[WorkerProcess, Death], None]


class Crew:
    """`count` worker processes, from `run` until it is cancelled."""

    def __init__(self, count: int, row_deadline_s: float, stats: Stats, employer: Employer) -> None:
        self._count = count
        self._row_deadline_s = row_deadline_s
        self._stats = stats
        self._employer = employer
        self.workers: list[WorkerProcess] = []
        self.deaths = 0

    def tell(self, *commands: Command) -> None:
        """Says something to every worker."""
        for command in commands:
            for worker in self.workers:
                worker.send(command)

    def drop(self, slots: tuple[int, ...]) -> None:
        """Has every worker unmap slots that are over."""
        for worker in self.workers:
            if worker.forget(slots):
                worker.send(DropSlots(slots))

    def fresh(self) -> WorkerProcess | None:
        """One that was never given a task."""
        return next((worker for worker in self.workers if worker.fresh), None)

    def free(self, most: int) -> WorkerProcess | None:
        """The one with the fewest tasks that may have another, `most` being what it may have."""
        found, fewest = None, most
        for worker in self.workers:
            if len(worker.tasks) < fewest and not worker.alone:
                found, fewest = worker, len(worker.tasks)
        return found

    def at_work(self, speaker: WorkerProcess | None) -> float:
        """The part of the workers that have a task, 0 to 1; `speaker` has just had one."""
        return sum([bool(worker.tasks) or worker is speaker for worker in self.workers]) / max(1, len(self.workers))

    async def run(self) -> None:
        """Keeps the processes alive until cancelled; none is left when it returns."""
        try:
            async with asyncio.TaskGroup() as group:
                for place in range(self._count):
                    group.create_task(self._tend(place), name=f"worker-{place}")
        finally:  # they have the manifests open, or are about to: who cleans up comes after them
            workers, self.workers = self.workers, []
            await asyncio.gather(*(worker.see_off() for worker in workers))

    async def _start(self, place: int) -> WorkerProcess | None:
        """A new worker; None when the host has no room for a process now."""
        try:
            return await WorkerProcess.start(place, self._employer.listener, self._row_deadline_s)
        except OSError as error:
            if error.errno not in _PASSING:
                raise
            log.warning("worker.denied", f"{error.strerror}; tried again in {WORKER_RESPAWN_MAX_S:g} s", place=place)
            return None

    async def _tend(self, place: int) -> None:
        """One worker's place: whoever dies there is replaced, ever more slowly while nothing gets done."""
        pause_s = WORKER_RESPAWN_S
        while True:
            worker = await self._start(place)
            if worker is None:
                await asyncio.sleep(WORKER_RESPAWN_MAX_S)
                continue
            self.workers.append(worker)
            self._employer.came(worker)
            death = await worker.ended()
            self.workers.remove(worker)
            self.deaths += 1
            self._stats.count("engine", "worker_deaths")
            pause_s = WORKER_RESPAWN_S if worker.completed else min(pause_s * 2, WORKER_RESPAWN_MAX_S)
            log.warning("worker.died", f"a worker died, {death.words}; the next starts in {pause_s:g} s", place=place)
            self._employer.died(worker, death)
            worker.close()
            await asyncio.sleep(pause_s)


class Shift:
    """A crew and the jobs that wait for it.

    `imported` are the transforms that its workers have imported, or tried to: a process can have one version of each.
    """

    def __init__(self, crew: Crew) -> None:
        self.crew = crew
        self.queue: deque[Job] = deque()
        self.suspects: deque[Job] = deque()
        self.productions: set[Production] = set()  # under way
        self.imported: set[TransformPlace] = set()
        self._running: asyncio.Task[None] | None = None

    def start(self, group: asyncio.TaskGroup) -> None:
        """Begins to keep its processes alive."""
        self._running = group.create_task(self.crew.run(), name="crew")

    def end(self) -> None:
        """Ends its processes."""
        if self._running is not None:
            self._running.cancel()

    def dispatch(self, give: Give) -> None:
        """Gives queued tasks to the workers that have the fewest, and a suspect to one that was never given any.

        Every suspect is there because a worker died, and whoever takes that one's place is fresh: none waits in vain.
        """
        while self.suspects and (fresh := self.crew.fresh()):
            give(fresh, self.suspects.popleft())
        while self.queue and (free := self.crew.free(self.queue[0].production.row_cost.tasks_ahead)):
            give(free, self.queue.popleft())

    def withdraw(self, production: Production) -> int:
        """Takes a batch's jobs out of the queues; how many there were."""
        waiting = len(self.queue) + len(self.suspects)
        self.queue, self.suspects = (
            deque(job for job in jobs if job.production is not production) for jobs in (self.queue, self.suspects)
        )
        return waiting - len(self.queue) - len(self.suspects)


class Shifts:
    """The shift that begins batches, `now`, and those before it that have some left to finish."""

    def __init__(self, hire: Callable[[], Crew]) -> None:
        self._hire = hire
        self._group: asyncio.TaskGroup | None = None
        self._ended_deaths = 0
        self._all = [Shift(hire())]
        self._relief: Shift | None = None  # that comes

    @property
    def now(self) -> Shift:
        return self._all[-1]

    @property
    def workers(self) -> Sequence[WorkerProcess]:
        return [worker for shift in self._all for worker in shift.crew.workers]

    @property
    def deaths(self) -> int:
        return self._ended_deaths + sum(shift.crew.deaths for shift in self._all)

    async def run(self) -> None:
        """Keeps all processes alive until cancelled; none is left when it returns."""
        async with asyncio.TaskGroup() as self._group:
            self.now.start(self._group)

    def of(self, production: Production) -> Shift:
        """The one that has begun a batch which is not over."""
        return next(shift for shift in self._all if production in shift.productions)

    def under_way(self, number: int) -> list[Production]:
        """The batches of a stream's number that are not over."""
        return [each for shift in self._all for each in shift.productions if each.number == number]

    def over(self, production: Production) -> None:
        """A batch has no task left."""
        shift = self.of(production)
        shift.productions.remove(production)
        self._end_if_done(shift)

    def relief(self) -> Shift:
        """A new shift, whose workers come. It is not `now` before it takes over; one at a time."""
        assert self._group is not None  # noqa: S101 - who is relieved runs
        self._relief = Shift(self._hire())
        self._relief.start(self._group)
        return self._relief

    def take_over(self, relief: Shift) -> None:
        """Who was there begins nothing more, and ends with the last batch that is under way."""
        relieved = self.now
        self._relief = None
        self._all.append(relief)
        self._end_if_done(relieved)

    def send_away(self, relief: Shift) -> None:
        """All is as before it came."""
        self._relief = None
        relief.end()

    def _end_if_done(self, shift: Shift) -> None:
        if shift is not self.now and not shift.productions:
            self._all.remove(shift)
            self._ended_deaths += shift.crew.deaths
            shift.end()

    def dispatch(self, give: Give) -> None:
        """Gives every worker what waits for it."""
        for shift in self._all:
            shift.dispatch(give)

    def tell(self, *commands: Command) -> None:
        """Says something to every worker, also to those that come."""
        for shift in self._all if self._relief is None else [*self._all, self._relief]:
            shift.crew.tell(*commands)

    def drop(self, slots: tuple[int, ...]) -> None:
        """Has every worker unmap slots that are over."""
        for shift in self._all:
            shift.crew.drop(slots)
