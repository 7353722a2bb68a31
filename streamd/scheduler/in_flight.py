"""What is in production, of which stream, and how long it takes: how much more the workers can be given."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from streamd.core.spec import StreamShape
from streamd.limits import TASKS_AHEAD_PER_WORKER
from streamd.scheduler.admission import SchedulerLimits, ahead_slots, batches_ahead, tasks_ahead

_COST_SMOOTHING: Final = 0.1


@dataclass(slots=True)
class _Stream:
    """A stream's part. A worker is given `depth` tasks of it at a time, which lie in `ahead` batches."""

    shape: StreamShape
    most: int  # batches in production
    running: int = 0
    depth: int = TASKS_AHEAD_PER_WORKER
    ahead: int = 0
    ahead_at_least: int = 0
    paused: bool = False


class Workload:
    """Counts batches and tasks as they begin and end. `limits` bounds what is filled at a time."""

    def __init__(self, shapes: Iterable[StreamShape], limits: SchedulerLimits) -> None:
        self._limits = limits
        self._streams: dict[str, _Stream] = {}
        # By slot: the stream as it was when the batch was begun, for another one may have its name since.
        self._running: dict[int, _Stream] = {}
        self._tasks = self._most_tasks = 0
        self._last_done_s = 0.0
        self.costs_s: dict[str, float] = {}  # of a batch, with all workers at work
        self.scarce = False  # somebody waits for memory: no worker is given more than it needs to go on
        for shape in shapes:
            self.put(shape)

    def __len__(self) -> int:
        """Batches in production."""
        return len(self._running)

    def put(self, shape: StreamShape) -> None:
        """A stream is new, or another one from now on."""
        most = ahead_slots(shape, self._limits)
        stream = self._streams[shape.name] = _Stream(shape, most)
        stream.ahead_at_least = min(most, batches_ahead(shape, self._limits.workers, TASKS_AHEAD_PER_WORKER))
        self._deepen(stream)

    def remove(self, name: str) -> None:
        """A stream is served no longer."""
        self._streams.pop(name, None)

    def pause(self, name: str) -> None:
        """Nothing of a stream is begun, until it is resumed or another one."""
        self._streams[name].paused = True

    def resume(self, name: str) -> None:
        """A stream goes on."""
        self._streams[name].paused = False

    # --- how much more

    @property
    def is_full(self) -> bool:
        """Whether the workers have all they can be given, whatever it is."""
        return self._tasks >= self._most_tasks

    def has_room(self, stream: str) -> bool:
        """Whether a worker could do with another batch of this stream."""
        depth = TASKS_AHEAD_PER_WORKER if self.scarce else self._streams[stream].depth
        return self._tasks < self._limits.workers * depth

    def has_slots(self, stream: str) -> bool:
        """Whether one more batch of this stream may be filled at a time."""
        known = self._streams[stream]
        return known.running < known.most and not known.paused

    def ahead(self, stream: str) -> int:
        """How many batches beyond its credit production looks for a session."""
        known = self._streams[stream]
        return known.ahead_at_least if self.scarce else known.ahead

    # --- what becomes of it

    def start_batch(self, shape: StreamShape, slot: int) -> None:
        """A batch goes into production."""
        stream = self._streams[shape.name]
        stream.running += 1
        self._tasks += shape.tasks
        self._running[slot] = stream

    def abandon_batch(self, slot: int) -> None:
        """A batch has come to nothing."""
        self._end(slot)

    def finish_batch(self, slot: int, started_s: float, now_s: float) -> None:
        """A batch is whole, and shows what one costs."""
        stream = self._end(slot)
        name, cost_s = stream.shape.name, now_s - max(started_s, self._last_done_s)
        known_s = self.costs_s.get(name, cost_s)
        self.costs_s[name] = known_s + _COST_SMOOTHING * (cost_s - known_s)
        self._last_done_s = now_s
        self._deepen(stream)

    def _end(self, slot: int) -> _Stream:
        stream = self._running.pop(slot)
        stream.running -= 1
        self._tasks -= stream.shape.tasks
        return stream

    def _deepen(self, stream: _Stream) -> None:
        """Fits what a worker is given to what a task costs."""
        shape = stream.shape
        depth = tasks_ahead(self.costs_s.get(shape.name, 0.0) * self._limits.workers / shape.tasks)
        if depth != stream.depth or not stream.ahead:
            stream.depth = depth
            stream.ahead = min(stream.most, batches_ahead(shape, self._limits.workers, depth))
            self._most_tasks = self._limits.workers * max((each.depth for each in self._streams.values()), default=0)
