"""What is in production, of which stream, and how long it takes: how much more the workers can be given."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from streamd.core.spec import StreamShape
from streamd.limits import TASKS_AHEAD_PER_WORKER
from streamd.scheduler.admission import (
    SchedulerLimits,
    compute_batches_ahead,
    compute_production_slots,
    compute_tasks_per_worker,
)

_COST_SMOOTHING: Final = 0.1


@dataclass(slots=True)
class _StreamWorkload:
    """A stream's part. A worker is given `depth` tasks of it at a time, which lie in `ahead` batches."""

    shape: StreamShape
    most_batches: int  # batches in production
    batches_running: int = 0
    tasks_per_worker: int = TASKS_AHEAD_PER_WORKER
    batches_ahead: int = 0
    least_batches_ahead: int = 0
    is_paused: bool = False


class Workload:
    """Counts batches and tasks as they begin and end. `limits` bounds what is filled at a time."""

    def __init__(self, shapes: Iterable[StreamShape], limits: SchedulerLimits) -> None:
        self._limits = limits
        self._streams: dict[str, _StreamWorkload] = {}
        # By slot: the stream as it was when the batch was begun, for another one may have its name since.
        self._streams_by_slot: dict[int, _StreamWorkload] = {}
        self._tasks_running = self._most_tasks = 0
        self._last_done_s = 0.0
        self.batch_costs_s: dict[str, float] = {}  # of a batch, with all workers at work
        self.is_memory_scarce = False  # somebody waits for memory: no worker is given more than it needs to go on
        for shape in shapes:
            self.put_stream(shape)

    def __len__(self) -> int:
        """Batches in production."""
        return len(self._streams_by_slot)

    def put_stream(self, shape: StreamShape) -> None:
        """A stream is new, or another one from now on."""
        most = compute_production_slots(shape, self._limits)
        stream = self._streams[shape.name] = _StreamWorkload(shape, most)
        stream.least_batches_ahead = min(
            most, compute_batches_ahead(shape, self._limits.workers, TASKS_AHEAD_PER_WORKER)
        )
        self._update_tasks_per_worker(stream)

    def remove_stream(self, name: str) -> None:
        """A stream is served no longer."""
        self._streams.pop(name, None)

    def pause_stream(self, name: str) -> None:
        """Nothing of a stream is begun, until it is resumed or another one."""
        self._streams[name].is_paused = True

    def resume_stream(self, name: str) -> None:
        """A stream goes on."""
        self._streams[name].is_paused = False

    # --- how much more

    @property
    def is_full(self) -> bool:
        """Whether the workers have all they can be given, whatever it is."""
        return self._tasks_running >= self._most_tasks

    def has_worker_capacity(self, stream: str) -> bool:
        """Whether a worker could do with another batch of this stream."""
        depth = TASKS_AHEAD_PER_WORKER if self.is_memory_scarce else self._streams[stream].tasks_per_worker
        return self._tasks_running < self._limits.workers * depth

    def can_fill_another_batch(self, stream: str) -> bool:
        """Whether one more batch of this stream may be filled at a time."""
        known = self._streams[stream]
        return known.batches_running < known.most_batches and not known.is_paused

    def count_batches_ahead(self, stream: str) -> int:
        """How many batches beyond its credit production looks for a session."""
        known = self._streams[stream]
        return known.least_batches_ahead if self.is_memory_scarce else known.batches_ahead

    # --- what becomes of it

    def start_batch(self, shape: StreamShape, slot: int) -> None:
        """A batch goes into production."""
        stream = self._streams[shape.name]
        stream.batches_running += 1
        self._tasks_running += shape.tasks
        self._streams_by_slot[slot] = stream

    def abandon_batch(self, slot: int) -> None:
        """A batch has come to nothing."""
        self._remove_batch(slot)

    def finish_batch(self, slot: int, started_s: float, now_s: float) -> None:
        """A batch is whole, and shows what one costs."""
        stream = self._remove_batch(slot)
        name, cost_s = stream.shape.name, now_s - max(started_s, self._last_done_s)
        known_s = self.batch_costs_s.get(name, cost_s)
        self.batch_costs_s[name] = known_s + _COST_SMOOTHING * (cost_s - known_s)
        self._last_done_s = now_s
        self._update_tasks_per_worker(stream)

    def _remove_batch(self, slot: int) -> _StreamWorkload:
        stream = self._streams_by_slot.pop(slot)
        stream.batches_running -= 1
        self._tasks_running -= stream.shape.tasks
        return stream

    def _update_tasks_per_worker(self, stream: _StreamWorkload) -> None:
        """Fits what a worker is given to what a task costs."""
        shape = stream.shape
        depth = compute_tasks_per_worker(self.batch_costs_s.get(shape.name, 0.0) * self._limits.workers / shape.tasks)
        if depth != stream.tasks_per_worker or not stream.batches_ahead:
            stream.tasks_per_worker = depth
            stream.batches_ahead = min(stream.most_batches, compute_batches_ahead(shape, self._limits.workers, depth))
            self._most_tasks = self._limits.workers * max(
                (each.tasks_per_worker for each in self._streams.values()), default=0
            )
