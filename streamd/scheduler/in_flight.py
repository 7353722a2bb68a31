"""Counts the batches in production and measures their cost; from both follows how much more workers can be given."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from streamd.core.spec import StreamShape
from streamd.limits import KEEP_COST_S, TASKS_AHEAD_PER_WORKER, WORK_BESIDE_OTHERS_S
from streamd.scheduler.admission import (
    SchedulerLimits,
    compute_batches_ahead,
    compute_production_slots,
    compute_tasks_per_worker,
)

_COST_SMOOTHING: Final = 0.1
_UNKNOWN_TASK_S: Final = 0.01  # what workers are taken to spend on a task of a stream that they have not decoded yet


@dataclass(slots=True, eq=False)
class _StreamWorkload:
    """A stream's part of the workload. A worker holds `tasks_per_worker` tasks of it, in `batches_ahead` batches.

    Beside sessions of other streams it holds `tasks_beside_others`. Where memory is scarce, a worker holds
    TASKS_AHEAD_PER_WORKER tasks, in `least_batches_ahead` batches.
    """

    shape: StreamShape
    most_batches: int  # batches in production
    batches_running: int = 0
    tasks_per_worker: int = TASKS_AHEAD_PER_WORKER
    tasks_beside_others: int = TASKS_AHEAD_PER_WORKER
    batches_ahead: int = 0
    least_batches_ahead: int = 0
    is_paused: bool = False
    task_work_s: float = 0.0  # what workers spend on a task; 0 while that is not known


class Workload:
    """Counts batches and tasks as they begin and end. `limits` bounds how many are filled at a time."""

    def __init__(self, shapes: Iterable[StreamShape], limits: SchedulerLimits) -> None:
        self._limits = limits
        self._streams: dict[str, _StreamWorkload] = {}
        # By slot: the stream as it was when the batch was begun. Its name may stand for another stream by now, and what
        # was counted on one must be taken off the same.
        self._streams_by_slot: dict[int, _StreamWorkload] = {}
        self._tasks_running: dict[_StreamWorkload, int] = {}  # of streams that have any
        self._last_done_s = 0.0
        self.batch_costs_s: dict[str, float] = {}  # of a batch, with all workers at work
        # While this is true, a batch within a session's credit waits for a slot, and no worker is given more tasks than
        # it needs to go on.
        self.is_memory_scarce = False
        self._have_horizons_grown = False
        self.has_sessions_of_several_streams = False
        for shape in shapes:
            self.put_stream(shape)

    def __len__(self) -> int:
        """The number of batches in production."""
        return len(self._streams_by_slot)

    def put_stream(self, shape: StreamShape) -> None:
        """Adds a stream, or replaces the one of its name; the new one is not paused."""
        stream = self._streams[shape.name] = _StreamWorkload(shape, most_batches=1)
        self._apply_limits(stream)

    def change_limits(self, limits: SchedulerLimits) -> None:
        """Bounds what is filled at a time anew, as when workers join or leave. Batches in production go on."""
        self._limits = limits
        for stream in self._streams.values():
            self._apply_limits(stream)

    def _apply_limits(self, stream: _StreamWorkload) -> None:
        shape, limits = stream.shape, self._limits
        most = stream.most_batches = compute_production_slots(shape, limits)
        stream.least_batches_ahead = min(most, compute_batches_ahead(shape, limits.workers, TASKS_AHEAD_PER_WORKER))
        stream.batches_ahead = 0
        self._update_tasks_per_worker(stream)

    def remove_stream(self, name: str) -> None:
        """Removes a stream. Its batches in production are counted until they end."""
        self._streams.pop(name, None)

    def pause_stream(self, name: str) -> None:
        """Lets no batch of a stream begin until it is resumed or replaced."""
        self._streams[name].is_paused = True

    def resume_stream(self, name: str) -> None:
        """Lets batches of a stream begin again."""
        self._streams[name].is_paused = False

    # --- how much more

    @property
    def is_full(self) -> bool:
        """Whether the workers have as many tasks as they can be given.

        A task takes up the more of a worker the fewer of its kind a worker may have. So a long task waits for no short
        ones to be done that nobody else would begin meanwhile.
        """
        if self.is_memory_scarce:
            return sum(self._tasks_running.values()) >= self._limits.workers * TASKS_AHEAD_PER_WORKER
        if self.has_sessions_of_several_streams:
            taken = sum(tasks / stream.tasks_beside_others for stream, tasks in self._tasks_running.items())
        else:
            taken = sum(tasks / stream.tasks_per_worker for stream, tasks in self._tasks_running.items())
        return taken >= self._limits.workers

    def can_fill_another_batch(self, stream: str) -> bool:
        """Whether one more batch of this stream may be filled at a time."""
        known = self._streams[stream]
        return known.batches_running < known.most_batches and not known.is_paused

    def take_note_of_grown_horizons(self) -> bool:
        """Returns whether production may look further ahead of any stream than when this was asked last."""
        grown, self._have_horizons_grown = self._have_horizons_grown, False
        return grown

    def set_memory_scarce(self, *, is_scarce: bool) -> None:
        """Records whether a batch within a session's credit waits for a slot."""
        self._have_horizons_grown |= self.is_memory_scarce and not is_scarce
        self.is_memory_scarce = is_scarce

    def count_batches_ahead(self, stream: str) -> int:
        """Returns how many batches beyond a session's credit production looks ahead."""
        known = self._streams[stream]
        return known.least_batches_ahead if self.is_memory_scarce else known.batches_ahead

    # --- begin and end of a batch

    def start_batch(self, shape: StreamShape, slot: int) -> None:
        """Counts a batch that goes into production in `slot`."""
        stream = self._streams[shape.name]
        stream.batches_running += 1
        self._tasks_running[stream] = self._tasks_running.get(stream, 0) + shape.tasks
        self._streams_by_slot[slot] = stream

    def abandon_batch(self, slot: int) -> None:
        """Uncounts a batch whose production ended without a result."""
        self._remove_batch(slot)

    def estimate_batch_work_s(self, shape: StreamShape) -> float:
        """Returns how long workers are busy with one batch, all their times added."""
        return (self._streams[shape.name].task_work_s or _UNKNOWN_TASK_S) * shape.tasks

    def is_expensive(self, stream: str) -> bool:
        """Whether a batch of a stream costs so much that it is kept for sessions that want it later."""
        cost_s, known = self.batch_costs_s.get(stream, 0.0), self._streams.get(stream)
        if known is not None and known.task_work_s:
            # Where the daemon itself is short of time, batches are finished late, and cost the workers no more.
            cost_s = min(cost_s, known.task_work_s * known.shape.tasks / self._limits.workers)
        return cost_s >= KEEP_COST_S

    def finish_batch(self, slot: int, started_s: float, now_s: float, busy_s: float = 0.0) -> None:
        """Uncounts a batch that is whole, and updates what a batch of its stream costs. `busy_s` of 0 is unknown."""
        stream = self._remove_batch(slot)
        if busy_s > 0:
            task_s = busy_s / stream.shape.tasks
            known_work_s = stream.task_work_s or task_s
            stream.task_work_s = known_work_s + _COST_SMOOTHING * (task_s - known_work_s)
        # Several batches are in production at a time. Only the time since the last one was finished is this batch's
        # own; the time since its start would count the same seconds for each of them.
        name, cost_s = stream.shape.name, now_s - max(started_s, self._last_done_s)
        known_s = self.batch_costs_s.get(name, cost_s)
        self.batch_costs_s[name] = known_s + _COST_SMOOTHING * (cost_s - known_s)
        self._last_done_s = now_s
        self._update_tasks_per_worker(stream)

    def _remove_batch(self, slot: int) -> _StreamWorkload:
        stream = self._streams_by_slot.pop(slot)
        stream.batches_running -= 1
        self._tasks_running[stream] -= stream.shape.tasks
        if not self._tasks_running[stream]:
            del self._tasks_running[stream]
        return stream

    def _update_tasks_per_worker(self, stream: _StreamWorkload) -> None:
        """Adjusts how many tasks a worker is given to what a task costs."""
        shape = stream.shape
        task_s = self.batch_costs_s.get(shape.name, 0.0) * self._limits.workers / shape.tasks
        depth = compute_tasks_per_worker(task_s, self._limits.tasks_ahead)
        # What the worker itself takes counts here: another stream's batch would wait for so much.
        stream.tasks_beside_others = min(
            depth, compute_tasks_per_worker(stream.task_work_s, self._limits.tasks_ahead, WORK_BESIDE_OTHERS_S)
        )
        # This runs for every batch, but the depth rarely changes. Under new limits there are no `batches_ahead` yet.
        if depth != stream.tasks_per_worker or not stream.batches_ahead:
            stream.tasks_per_worker = depth
            self._have_horizons_grown = True
            stream.batches_ahead = min(stream.most_batches, compute_batches_ahead(shape, self._limits.workers, depth))
