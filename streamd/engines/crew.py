"""The workers of this host: as many processes as there are places, each watched, and replaced when it dies."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from streamd import logs
from streamd.engines.deaths import Death
from streamd.engines.process import Listener, WorkerProcess
from streamd.limits import WORKER_RESPAWN_MAX_S, WORKER_RESPAWN_S
from streamd.stats import Stats
from streamd.tasks import Command, DropSlots

_PASSING: Final = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})  # of starting a process


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
            logs.warning("worker.denied", f"{error.strerror}; tried again in {WORKER_RESPAWN_MAX_S:g} s", place=place)
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
            logs.warning("worker.died", f"a worker died, {death.words}; the next starts in {pause_s:g} s", place=place)
            self._employer.died(worker, death)
            worker.close()
            await asyncio.sleep(pause_s)
