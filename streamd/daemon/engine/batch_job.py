"""One batch on its way through the workers: which rows are still to be filled, and with what."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from streamd.core.bad_samples import RowStatus
from streamd.core.counters import ProcessStats
from streamd.core.sampler import PAD_ID, Ids
from streamd.core.spec import BatchKey
from streamd.daemon.engine.row_cost import RowCost
from streamd.daemon.streams.served_stream import ServedStream
from streamd.ipc.worker_messages import FillRows, RowNumbers, TaskDone, UnfilledRow
from streamd.limits import TASK_ATTEMPTS, TASK_GIVE_UP_S, WORKER_RESPAWN_MAX_S, WORKER_RESPAWN_S


@dataclass(slots=True, eq=False)
class BatchJob:
    """A batch being filled. `delivered_ids` follows the verdicts as they come in."""

    key: BatchKey
    stream: ServedStream
    stream_number: int  # of the stream, to the workers
    slot: int
    slot_bytes: int
    row_cost: RowCost = field(default_factory=RowCost)
    delivered_ids: Ids = field(init=False)
    row_status: RowStatus = field(init=False)
    known_bad_samples: int = field(init=False)  # known when the batch was last resolved
    pending_tasks: int = 0  # tasks that are not over
    is_given_up: bool = False
    busy_s: float = 0.0  # of workers' time, ...
    waited_s: float = 0.0  # ... in which they waited for reads
    busy_fraction: float = 0.0  # the part of the workers that had a task when it was whole

    def __post_init__(self) -> None:
        self._resolve_delivered_ids()

    def _resolve_delivered_ids(self) -> None:
        self.known_bad_samples = len(self.stream.quarantine.reasons)
        self.delivered_ids, self.row_status = self.stream.resolve_delivered_ids(self.key.epoch, self.key.index)

    def make_first_tasks(self, numbers: Iterator[int]) -> list[Task]:
        """The tasks that fill the whole batch."""
        rows = _make_row_numbers(self.delivered_ids.size)
        if not self.row_cost.is_known and self.stream.manifest.arrays is None:  # rows of arrays are copied, not decoded
            self.row_cost.estimate_from_bytes(
                float(self.stream.manifest.lookup_sample_bytes(np.maximum(self.delivered_ids, 0)).mean())
            )
        if rows.size <= self.row_cost.task_rows:
            return [self._make_task(rows, self.delivered_ids, next(numbers))]
        return self._split_rows_into_tasks(rows, numbers)

    def make_refill_tasks(self, numbers: Iterator[int]) -> list[Task]:
        """The tasks for rows that new verdicts have given another sample."""
        if self.known_bad_samples == len(self.stream.quarantine.reasons):
            return []
        before = self.delivered_ids
        self._resolve_delivered_ids()
        return self._split_rows_into_tasks(np.flatnonzero(before != self.delivered_ids).astype(np.uint16), numbers)

    def make_retry_task(self, task: Task, unfilled: tuple[UnfilledRow, ...], numbers: Iterator[int]) -> Task:
        """A task for the rows of `task` whose samples failed in a way that may pass. Deaths do not count in it."""
        failed = np.isin(task.ids, [sample.sample_id for sample in unfilled if not sample.lasting])
        return self._make_task(task.rows[failed], task.ids[failed], next(numbers), failures=task.failures + 1)

    def _split_rows_into_tasks(self, rows: RowNumbers, numbers: Iterator[int]) -> list[Task]:
        most = self.row_cost.task_rows
        pieces = [rows[start : start + most] for start in range(0, rows.size, most)]
        return [self._make_task(piece, self.delivered_ids[piece], next(numbers)) for piece in pieces]

    def _make_task(self, rows: RowNumbers, ids: Ids, number: int, failures: int = 0) -> Task:
        return Task(
            number, self.stream_number, self.slot, self.slot_bytes, self.delivered_ids.size, rows, ids, self.key.epoch,
            job=self, queued_s=time.monotonic(), failures=failures,
        )  # fmt: skip


class Task(FillRows, frozen=True, eq=False, kw_only=True):
    """A worker's part of a batch, until its rows are filled. A worker gets the fields of FillRows alone.

    A suspect is the task of one sample that was being decoded when a worker died of something that a sample may do.
    """

    job: BatchJob
    queued_s: float  # on the monotonic clock
    deaths: int = 0  # of workers, for reasons that are not the samples'
    first_death_s: float = 0.0  # when the first of them died
    failures: int = 0  # of reads, which may pass
    is_suspect: bool = False

    def with_one_more_death(self, now_s: float) -> Task:
        """This task when one more worker has died at it."""
        return replace(self, deaths=self.deaths + 1, first_death_s=self.first_death_s if self.deaths else now_s)

    def has_killed_too_many_workers(self, now_s: float) -> bool:
        """Whether too many workers have died at it, over too long a time."""
        return self.deaths >= TASK_ATTEMPTS and now_s - self.first_death_s >= TASK_GIVE_UP_S

    @property
    def retry_delay_s(self) -> float:
        """The time before it is tried again, since a worker died at it."""
        return min(WORKER_RESPAWN_S * ((1 << min(self.deaths - 1, 10)) - 1), WORKER_RESPAWN_MAX_S)

    @property
    def first_file_names(self) -> str:
        """The first of its files, by name."""
        return ", ".join(self.job.stream.format_file_name(int(each)) for each in self.ids[:3] if each >= 0)

    def split_off_suspect(self, sample_id: int, numbers: Iterator[int]) -> tuple[Task, list[Task]]:
        """The rows of one sample as a suspect, and a task with those of all others, if there are any."""
        own = self.ids == sample_id
        others = [] if own.all() else [self._select_rows(~own, next(numbers))]
        return replace(self._select_rows(own, next(numbers)), is_suspect=True), others

    def _select_rows(self, chosen: npt.NDArray[np.bool_], number: int) -> Task:
        return replace(self, number=number, rows=self.rows[chosen], ids=self.ids[chosen])

    def add_times_to_stats(self, report: TaskDone, stats: ProcessStats) -> None:
        """Counts where the time of this task went, and how many of its rows a cache held."""
        group, rows = f"stream.{self.job.key.stream}", self.rows.size
        stats.stage_histogram(group, "read").add_runs(report.read_ns / 1e9, rows)
        stats.stage_histogram(group, "decode").add_runs(report.decode_ns / 1e9, rows)
        if self.job.stream.cache is not None:
            stats.add_count(group, "cache_hits", report.gathered)
            stats.add_count(group, "cache_misses", rows - report.gathered)

    def update_row_cost(self, report: TaskDone) -> None:
        """Notes what a row of the stream takes; a task that did not make all its rows says nothing of that."""
        samples, cost = int(np.count_nonzero(self.ids != PAD_ID)), self.job.row_cost
        made = samples if self.job.stream.transform else samples - report.gathered
        if samples == 0 or report.decode_ns == 0 or report.bad or report.unfit:
            return
        if made:
            cost.update_from_decoded_rows(made, report.decode_ns)
        else:
            cost.update_from_cached_rows(samples, report.decode_ns)


@lru_cache(maxsize=64)
def _make_row_numbers(count: int) -> RowNumbers:
    rows = np.arange(count, dtype=np.uint16)
    rows.setflags(write=False)
    return rows
