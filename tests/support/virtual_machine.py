"""A machine in virtual time: slow decoders, trainers at their own pace, and the real scheduler between them."""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from streamd.scheduler.events import ProduceBatch
from support.scheduler_driver import MIB, Trainer, World, train

_MOMENT_S = 1e-9  # what rounding makes of no time


@dataclass(frozen=True, slots=True)
class Pace:
    """How a trainer goes: from `start_s` on, `step_s` a batch; with some batches (epoch, index) it pauses."""

    start_s: float
    step_s: float
    epochs: int = 1
    pauses_s: Mapping[tuple[int, int], float] = field(default_factory=dict)
    rank: int = 0
    world: int = 1
    credit: int = 8


@dataclass(slots=True)
class Loop:
    """A trainer's loop: away, busy with a batch, or waiting for one."""

    pace: Pace
    trainer: Trainer | None = None
    busy: bool = False
    took_s: list[float] = field(default_factory=list)  # when it took each batch
    waited_s: float = 0.0
    wronged_s: float = 0.0  # waited for what nobody worked at, while a decoder had nothing to do

    @property
    def over(self) -> bool:
        trainer = self.trainer
        return trainer is not None and len(trainer.receipts) == self.pace.epochs and not trainer.inbox

    def count(self, until_s: float) -> int:
        """Batches taken by then."""
        return sum(moment_s <= until_s for moment_s in self.took_s)

    def epochs_s(self) -> list[float]:
        """How long each epoch took, from its first batch to the next one's first, or to its own last."""
        assert self.trainer is not None
        epochs = [epoch for epoch, _ in self.trainer.taken]
        starts_s = [self.took_s[epochs.index(epoch)] for epoch in range(self.pace.epochs)]
        return [end_s - start_s for start_s, end_s in zip(starts_s, [*starts_s[1:], self.took_s[-1]], strict=True)]


class Machine:
    """`decoders` take `task_s` for each of the `tasks` of a batch, in the order in which the batches were begun.

    With `uneven` decoders and trainers take half as long to half as long again each time.
    """

    def __init__(
        self,
        *paces: Pace,
        batches: int,
        task_s: float,
        decoders: int = 2,
        tasks: int = 1,
        slots: int = 64,
        uneven: random.Random | None = None,
    ) -> None:
        self.world = World(train(batches, tasks=tasks), memory=slots * MIB, workers=decoders, check=False)
        self.loops = [Loop(pace) for pace in paces]
        self.made_s: list[float] = []  # when each batch was done
        self._task_s, self._tasks, self._idle, self._uneven = task_s, tasks, decoders, uneven
        self._queue: deque[ProduceBatch] = deque()  # one entry a task that no decoder has begun
        self._left: Counter[int] = Counter()  # slot -> tasks not done
        self._seen = 0  # of all batches that were given to the decoders
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        for loop in self.loops:
            self._after(loop.pace.start_s, partial(self._join, loop))

    def run(self, until_s: float = float("inf")) -> None:
        """Lets things happen until then, or until nothing is left to happen."""
        while self._agenda and self._agenda[0][0] <= until_s:
            at_s, _, happen = heapq.heappop(self._agenda)
            self._pass(at_s)
            happen()
            self._settle()

    def decodes_per_batch(self, from_s: float, to_s: float) -> float:
        """Batches decoded for one that every trainer took; 1.0 when they share all."""
        taken = sum(loop.count(to_s) - loop.count(from_s) for loop in self.loops)
        return sum(from_s < moment_s <= to_s for moment_s in self.made_s) * len(self.loops) / taken

    # --- what happens

    def _after(self, time_s: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (self.world.now_s + time_s, next(self._order), happen))

    def _about(self, time_s: float) -> float:
        return time_s * self._uneven.uniform(0.5, 1.5) if self._uneven else time_s

    def _pass(self, at_s: float) -> None:
        passed_s, self.world.now_s = at_s - self.world.now_s, at_s
        for loop in self.loops:
            trainer = loop.trainer
            if trainer and trainer.open and not loop.busy and not loop.over and passed_s > _MOMENT_S:
                loop.waited_s += passed_s
                loop.wronged_s += passed_s if self._idle and not self._in_work(trainer) else 0.0

    def _in_work(self, trainer: Trainer) -> bool:
        """Whether what a waiting trainer needs is in production."""
        wanted = next(each.next_key for each in self.world.window.sessions if each.id == trainer.session)
        return any(job.key == wanted for job in self.world.producing)

    def _settle(self) -> None:
        """Whoever has something to do begins."""
        new, self._seen = len(self.world.made) - self._seen, len(self.world.made)
        for job in list(self.world.producing)[len(self.world.producing) - new :]:
            self._queue.extend([job] * self._tasks)
            self._left[job.slot] = self._tasks
        while self._idle and self._queue:
            self._idle -= 1
            self._after(self._about(self._task_s), partial(self._decoded, self._queue.popleft()))
        for loop in self.loops:
            if loop.trainer and loop.trainer.inbox and not loop.busy:
                self._take(loop, loop.trainer)

    def _join(self, loop: Loop) -> None:
        pace = loop.pace
        loop.trainer = self.world.subscribe(rank=pace.rank, world=pace.world, epochs=pace.epochs, credit=pace.credit)

    def _decoded(self, job: ProduceBatch) -> None:
        self._idle += 1
        self._left[job.slot] -= 1
        if not self._left[job.slot]:
            self.made_s.append(self.world.now_s)
            self.world.produce(self.world.producing.index(job))

    def _take(self, loop: Loop, trainer: Trainer) -> None:
        loop.busy = True
        loop.took_s.append(self.world.now_s)
        number = self.world.receive(trainer)
        pause_s = loop.pace.pauses_s.get(trainer.taken[-1], 0.0)
        self._after(self._about(loop.pace.step_s) + pause_s, partial(self._step, loop, trainer, number))

    def _step(self, loop: Loop, trainer: Trainer, number: int) -> None:
        loop.busy = False
        self.world.release(trainer, number)
        self.world.grant(trainer, number + 1 + trainer.credit)
