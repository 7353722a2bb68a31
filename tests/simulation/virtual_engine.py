"""The slots of a daemon and its workers in virtual time: who dies, what fails, which samples turn out to be bad."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from stage import Stage
from synthetic import SLOT_BYTES, Slot
from virtual_time import Process

from streamd.ipc.messages import BatchReady
from streamd.limits import TASK_ATTEMPTS, WORKER_RESPAWN_S
from streamd.scheduler.events import BatchProduced, ProduceBatch, ProductionFailed


@dataclass(slots=True, eq=False)
class Job:
    """A batch with a worker. `deaths` of workers it has seen; `attempt` tells live workers from dead ones."""

    action: ProduceBatch
    pixels: int
    deaths: int = 0
    attempt: int = 0


class VirtualEngine:
    """As slots, engines and quarantine. Tells `report` what the window must hear."""

    def __init__(
        self, stage: Stage, process: Process, report: Callable[[BatchProduced | ProductionFailed], None]
    ) -> None:
        self.slots: dict[int, Slot] = {}
        self.ready: dict[int, BatchReady] = {}  # what lies in each slot, as trainers are told
        self.running: list[Job] = []
        self._process, self._report = process, report
        self._data, self._hardware = stage.data, stage.hardware
        self._rng, self._story = stage.rng, stage.story
        self._queue: deque[Job] = deque()
        self._gone: set[int] = set()

    def produce(self, action: ProduceBatch) -> None:
        slot = self.slots.get(action.slot)
        if slot is None:
            self._story.require("a serial is never used again", action.slot not in self._gone, "{}", action)
            slot = self.slots[action.slot] = Slot()
            slot.serial = action.slot
        unseen = not slot.watchers
        self._story.require("what somebody sees is never rewritten", unseen, "slot {} for {}", slot.serial, action.key)
        slot.blank()
        self._queue.append(Job(action, self._data.pixels))
        self._work()

    def drop(self, serials: tuple[int, ...]) -> None:
        for serial in serials:
            slot = self.slots.pop(serial)
            unseen = not slot.watchers or slot.forked
            self._story.require("memory counts as long as a trainer sees it", unseen, "slot {} is dropped", serial)
            self.ready.pop(serial, None)
            self._gone.add(serial)

    # --- workers

    def _work(self) -> None:
        while self._queue and len(self.running) < self._hardware.workers:
            job = self._queue.popleft()
            self.running.append(job)
            effort = self._rng.random()
            decode_s = self._hardware.decode_s * (0.5 + effort if effort < 0.97 else 20)
            self._process.after(decode_s, self._decoded, job, job.attempt)

    def _decoded(self, job: Job, attempt: int) -> None:
        """A worker has gone through a batch: verdicts are on disk before the batch goes on, or it is resolved again."""
        if attempt != job.attempt:
            return
        key = job.action.key
        if found := self._data.condemn(key.epoch, key.index):
            self._story.counts["samples condemned"] += len(found)
            self._story.note("", "samples {} of {}:{} are bad", found, key.epoch, key.index)
            self._process.after(self._hardware.decode_s, self._decoded, job, attempt)
            return
        self.running.remove(job)
        self._fill(job)
        self._report(BatchProduced(job.action.slot))
        self._work()

    def _fill(self, job: Job) -> None:
        key, serial = job.action.key, job.action.slot
        ids, marks = self._data.resolved(key.epoch, key.index)
        self.slots[serial].write(key.epoch, key.index, job.pixels, ids)
        bad = self._data.bad_rows(key.epoch, key.index, marks) if self._data.verdicts else ()
        self.ready[serial] = BatchReady(key.epoch, key.index, ids.size, serial, SLOT_BYTES, inline=False, bad=bad)

    # --- faults

    def kill_worker(self) -> bool:
        """One dies at its work; whether there was one."""
        if not self.running:
            return False
        job = self._rng.choice(self.running)
        self._story.counts["batches begun again"] += 1
        job.deaths += 1
        job.attempt += 1
        if job.deaths < TASK_ATTEMPTS:
            self.slots[job.action.slot].blank()
            self.running.remove(job)
            self._process.after(WORKER_RESPAWN_S, self._again, job)
        else:
            self._fail(job)
        return True

    def _again(self, job: Job) -> None:
        self._queue.appendleft(job)
        self._work()

    def fail_production(self) -> bool:
        """One fails for a reason that is no sample's; whether there was one."""
        if not self.running:
            return False
        self._fail(self._rng.choice(self.running))
        return True

    def _fail(self, job: Job) -> None:
        self.running.remove(job)
        job.attempt += 1
        self._report(ProductionFailed(job.action.slot, "the disk is gone"))
        self._work()
