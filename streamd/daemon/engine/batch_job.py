"""One batch while workers fill it: its tasks, and the sample that each row gets."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np
from msgspec.structs import replace

from streamd.core.counters import ProcessStats
from streamd.core.sampler import PAD_ID, BadSample, Ids, RowStatus
from streamd.core.spec import BatchKey
from streamd.daemon.streams.served_stream import ServedStream
from streamd.ipc.worker_messages import FillRows, RowNumbers, TaskDone
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

_SMOOTHING: Final = 0.2
_TASK_NS: Final = int(TASK_S * 1e9)
_NS_A_BYTE: Final = 20.0  # nanoseconds for a byte of a photograph's file, until a row was measured


@dataclass(slots=True, eq=False)
class RowCost:
    """The measured time of a row of one stream, and the sizes that follow: rows of a task, and tasks ahead of a worker.

    Where rows are slow, tasks are small, so that several workers share a batch.
    """

    task_rows: int = TASK_ROWS
    tasks_ahead: int = MAX_TASKS_AHEAD
    is_known: bool = False
    _row_ns: float = 0.0
    _is_measured: bool = False  # from decoded rows, not only from cached ones

    @property
    def row_s(self) -> float:
        """The seconds that a row takes; 0 while that is not known."""
        return self._row_ns / 1e9

    def estimate_from_bytes(self, row_bytes: float) -> None:
        """Estimates the time of a row from the bytes of its file, until a row was measured."""
        self._row_ns = row_bytes * _NS_A_BYTE
        self._update_rows_per_task()

    def add_measurement(self, rows: int, took_ns: int, *, are_cached: bool = False) -> None:
        """Updates the time of a row from `rows` rows that took `took_ns` nanoseconds to decode.

        Rows from the cache count only while no decoded row was measured.
        """
        if are_cached and self._is_measured:
            return
        is_first, row_ns = not (self.is_known if are_cached else self._is_measured), took_ns / rows
        self._row_ns = row_ns if is_first else self._row_ns + _SMOOTHING * (row_ns - self._row_ns)
        self.is_known, self._is_measured = True, self._is_measured or not are_cached
        self._update_rows_per_task()

    def _update_rows_per_task(self) -> None:
        # A worker is given many cheap tasks ahead, since handing one over costs as much as doing it. It is given only
        # two expensive ones: it decodes the rows of one while it reads the files of the other.
        whole = self._row_ns * TASK_ROWS <= _TASK_NS
        self.task_rows = TASK_ROWS if whole else max(1, int(_TASK_NS / self._row_ns))
        self.tasks_ahead = MAX_TASKS_AHEAD if whole else TASKS_AHEAD_PER_WORKER


@dataclass(slots=True, eq=False)
class BatchJob:
    """A batch that workers are filling. `delivered_ids` is resolved again when samples turn out to be bad."""

    key: BatchKey
    stream: ServedStream
    stream_number: int  # under which workers know this version of the stream
    slot: int
    slot_bytes: int
    row_cost: RowCost = field(default_factory=RowCost)
    delivered_ids: Ids = field(init=False)
    row_status: RowStatus = field(init=False)
    known_bad_samples: int = field(init=False)  # how many were known when `delivered_ids` was last resolved
    pending_tasks: int = 0  # queued, with a worker, or waiting to be tried again
    is_given_up: bool = False
    busy_s: float = 0.0  # seconds that workers spent on its rows, ...
    waited_s: float = 0.0  # ... and those of them in which they waited for reads
    busy_fraction: float = 0.0  # fraction of the workers that had a task when it was complete

    def __post_init__(self) -> None:
        self._resolve_delivered_ids()

    def _resolve_delivered_ids(self) -> None:
        self.known_bad_samples = len(self.stream.quarantine.reasons)
        self.delivered_ids, self.row_status = self.stream.resolve_delivered_ids(self.key.epoch, self.key.index)

    def make_first_tasks(self, numbers: Iterator[int]) -> list[Task]:
        """Returns the tasks that fill the whole batch."""
        rows = _make_row_numbers(self.delivered_ids.size)
        if not self.row_cost.is_known and self.stream.manifest.arrays is None:  # rows of arrays are copied, not decoded
            self.row_cost.estimate_from_bytes(
                float(self.stream.manifest.lookup_sample_bytes(np.maximum(self.delivered_ids, 0)).mean())
            )
        if rows.size <= self.row_cost.task_rows:
            return [self._make_task(rows, self.delivered_ids, next(numbers))]
        return self._split_rows_into_tasks(rows, numbers)

    def make_refill_tasks(self, numbers: Iterator[int]) -> list[Task]:
        """Returns tasks for the rows whose sample has changed with new verdicts; [] if there are none."""
        # Verdicts are only ever added, so an equal number means the same verdicts.
        if self.known_bad_samples == len(self.stream.quarantine.reasons):
            return []
        before = self.delivered_ids
        self._resolve_delivered_ids()
        return self._split_rows_into_tasks(np.flatnonzero(before != self.delivered_ids).astype(np.uint16), numbers)

    def make_retry_task(self, task: Task, unfilled: tuple[BadSample, ...], numbers: Iterator[int]) -> Task:
        """Returns a task for the rows of `task` whose read errors may pass. Its count of deaths starts at 0."""
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
    """Rows of one batch for one worker, until they are filled. Only the fields of FillRows are sent."""

    job: BatchJob
    queued_s: float  # on the monotonic clock
    deaths: int = 0  # of workers at this task, from causes outside its samples
    first_death_s: float = 0.0  # when the first of them happened, on the monotonic clock
    failures: int = 0  # earlier attempts that ended with read errors that may pass

    def with_one_more_death(self, now_s: float) -> Task:
        """Returns this task with one more death counted, which happened at `now_s`."""
        return replace(self, deaths=self.deaths + 1, first_death_s=self.first_death_s if self.deaths else now_s)

    def has_killed_too_many_workers(self, now_s: float) -> bool:
        """Whether at least TASK_ATTEMPTS workers have died at this task, over at least TASK_GIVE_UP_S."""
        return self.deaths >= TASK_ATTEMPTS and now_s - self.first_death_s >= TASK_GIVE_UP_S

    @property
    def estimated_s(self) -> float:
        """The seconds that its rows will take; 0 while that is not known."""
        return self.job.row_cost.row_s * self.rows.size

    @property
    def retry_delay_s(self) -> float:
        """The pause after a death, in seconds: 0 after the first, then growing to WORKER_RESPAWN_MAX_S."""
        return min(WORKER_RESPAWN_S * ((1 << min(self.deaths - 1, 10)) - 1), WORKER_RESPAWN_MAX_S)

    @property
    def first_file_names(self) -> str:
        """The names of the first three files, separated by commas."""
        return ", ".join(self.job.stream.format_file_name(int(each)) for each in self.ids[:3] if each >= 0)

    def split_off_suspect(self, sample_id: int, numbers: Iterator[int]) -> tuple[Task, list[Task]]:
        """Returns a suspect with the rows of one sample, and a task with all other rows, if there are any."""
        own = self.ids == sample_id
        others = []
        if not own.all():
            others.append(replace(self, number=next(numbers), rows=self.rows[~own], ids=self.ids[~own]))
        suspect = replace(self, number=next(numbers), rows=self.rows[own], ids=self.ids[own], is_suspect=True)
        return suspect, others

    def record_report(self, report: TaskDone, stats: ProcessStats) -> None:
        """Adds the task's times, cache hits and misses to the statistics, and updates the cost of a row."""
        group, rows = f"stream.{self.job.key.stream}", self.rows.size
        stats.stage_histogram(group, "read").add_runs(report.read_ns / 1e9, rows)
        stats.stage_histogram(group, "decode").add_runs(report.decode_ns / 1e9, rows)
        if self.job.stream.cache is not None:
            stats.add_count(group, "cache_hits", report.gathered)
            stats.add_count(group, "cache_misses", rows - report.gathered)
        # A task that did not fill all its rows says nothing about the cost of one.
        samples, cost = int(np.count_nonzero(self.ids != PAD_ID)), self.job.row_cost
        # The cache lies before the transform, so a stream with a transform works on every row, cached or not.
        made = samples if self.job.stream.transform else samples - report.gathered
        if samples == 0 or report.decode_ns == 0 or report.bad or report.unfit:
            return
        cost.add_measurement(made or samples, report.decode_ns, are_cached=not made)


@lru_cache(maxsize=64)
def _make_row_numbers(count: int) -> RowNumbers:
    # All whole batches of one size share this array, so nothing may write to it.
    rows = np.arange(count, dtype=np.uint16)
    rows.setflags(write=False)
    return rows
