"""One batch on its way through the workers: which rows are still to be filled, and with what; and who hears of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from streamd.core.bad_samples import Marks
from streamd.core.sampler import Ids
from streamd.core.spec import BatchKey
from streamd.daemon.engine.row_cost import RowCost
from streamd.daemon.streams.served_stream import ServedStream
from streamd.ipc.worker_messages import BadSample, Rows, Task
from streamd.limits import TASK_ATTEMPTS, TASK_GIVE_UP_S, WORKER_RESPAWN_MAX_S, WORKER_RESPAWN_S


@dataclass(slots=True, eq=False)
class Job:
    """A task in the engine's hands: whose it is, when it was queued, how often it was in vain.

    A `suspect` is the task of one sample that was being decoded when a worker died of something that a sample may do.
    """

    task: Task
    production: Production
    queued_s: float
    deaths: int = 0  # of workers, for reasons that are not the samples'
    died_s: float | None = None  # when the first of them did
    failures: int = 0  # of reads, which may pass
    suspect: bool = False

    def count_death(self, now_s: float) -> bool:
        """One more worker has died at it; whether that is one too many."""
        self.deaths += 1
        self.died_s = now_s if self.died_s is None else self.died_s
        return self.deaths >= TASK_ATTEMPTS and now_s - self.died_s >= TASK_GIVE_UP_S

    @property
    def pause_s(self) -> float:
        """Before it is tried again, since a worker died at it."""
        return min(WORKER_RESPAWN_S * ((1 << min(self.deaths - 1, 10)) - 1), WORKER_RESPAWN_MAX_S)

    def files(self) -> str:
        """The first of its files, by name."""
        return ", ".join(self.production.stream.file(int(each)) for each in self.task.ids[:3] if each >= 0)


@dataclass(slots=True, eq=False)
class Production:
    """A batch being filled. `delivered` follows the verdicts as they come in."""

    key: BatchKey
    stream: ServedStream
    number: int  # of the stream, to the workers
    slot: int
    slot_bytes: int
    row_cost: RowCost = field(default_factory=RowCost)
    delivered: Ids = field(init=False)
    marks: Marks = field(init=False)
    verdicts: int = field(init=False)  # known when the batch was last resolved
    pending: int = 0
    given_up: bool = False
    busy_s: float = 0.0  # of workers' time, ...
    waited_s: float = 0.0  # ... in which they waited for reads
    at_work: float = 0.0  # the part of the workers that had a task when it was whole

    def __post_init__(self) -> None:
        self._resolve()

    def _resolve(self) -> None:
        self.verdicts = len(self.stream.quarantine.reasons)
        self.delivered, self.marks = self.stream.resolved(self.key.epoch, self.key.index)

    def first_tasks(self, numbers: Iterator[int]) -> list[Task]:
        """The tasks that fill the whole batch."""
        rows = _all_rows(self.delivered.size)
        if not self.row_cost.known and self.stream.manifest.arrays is None:  # rows of arrays are copied, not decoded
            self.row_cost.expect(float(self.stream.manifest.bytes_of(np.maximum(self.delivered, 0)).mean()))
        if rows.size <= self.row_cost.task_rows:
            return [self._task(rows, self.delivered, next(numbers))]
        return self._tasks(rows, numbers)

    def renew(self, numbers: Iterator[int]) -> list[Task]:
        """The tasks for rows that new verdicts have given another sample."""
        if self.verdicts == len(self.stream.quarantine.reasons):
            return []
        before = self.delivered
        self._resolve()
        return self._tasks(np.flatnonzero(before != self.delivered).astype(np.uint16), numbers)

    def again(self, task: Task, bad: tuple[BadSample, ...], numbers: Iterator[int]) -> Task:
        """A task for the rows of `task` whose samples failed in a way that may pass."""
        failed = np.isin(task.ids, [sample.sample_id for sample in bad if not sample.lasting])
        return self._task(task.rows[failed], task.ids[failed], next(numbers))

    def parted(self, task: Task, sample_id: int, numbers: Iterator[int]) -> tuple[Task, list[Task]]:
        """The rows of one sample in a task of their own, and those of all others, if there are any."""
        own = task.ids == sample_id
        others = [] if own.all() else [self._task(task.rows[~own], task.ids[~own], next(numbers))]
        return self._task(task.rows[own], task.ids[own], next(numbers)), others

    def _tasks(self, rows: Rows, numbers: Iterator[int]) -> list[Task]:
        most = self.row_cost.task_rows
        pieces = [rows[start : start + most] for start in range(0, rows.size, most)]
        return [self._task(piece, self.delivered[piece], next(numbers)) for piece in pieces]

    def _task(self, rows: Rows, ids: Ids, number: int) -> Task:
        return Task(number, self.number, self.slot, self.slot_bytes, self.delivered.size, rows, ids, self.key.epoch)


@dataclass(frozen=True, slots=True)
class Reporter:
    """Where the engine tells what became of batches, and that a worker died.

    `away`: the data of a stream are not there, for that reason, and these batches come to nothing; `back`: they are
    there again. Where nobody waits for that, the batches fail.
    """

    produced: Callable[[Sequence[Production]], None]
    failed: Callable[[Production, str], None]
    died: Callable[[], None] = lambda: None
    away: Callable[[str, str, Sequence[Production]], None] | None = None
    back: Callable[[str], None] = lambda _: None


@lru_cache(maxsize=64)
def _all_rows(count: int) -> Rows:
    rows = np.arange(count, dtype=np.uint16)
    rows.setflags(write=False)
    return rows
