"""The way of one rank through its stream, step by step, epoch by epoch: the same arithmetic for window and client."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from streamd.core.spec import Cursor, Uneven, steps_from


class Step(msgspec.Struct, frozen=True, gc=False):
    """A place on the way: step `step` of the `steps` from `base` in `epoch`."""

    epoch: int
    base: int
    step: int
    steps: int

    @property
    def at_epoch_end(self) -> bool:
        return self.step >= self.steps


@dataclass(frozen=True, slots=True)
class Walk:
    """Rank `rank` of `world` takes base + k * world + rank of `batches` an epoch; `epochs` in total, None runs on."""

    batches: int
    rank: int
    world: int
    uneven: Uneven
    epochs: int | None

    def start(self, cursor: Cursor) -> Step:
        """The step that follows what the cursor has behind it."""
        return Step(cursor.epoch, cursor.base, 0, steps_from(cursor.base, self.world, self.batches, self.uneven))

    @property
    def steps(self) -> int:
        """Steps of a whole epoch."""
        return steps_from(0, self.world, self.batches, self.uneven)

    def index(self, step: Step) -> int:
        return step.base + step.step * self.world + self.rank

    def next_epoch(self, step: Step) -> Step:
        return Step(step.epoch + 1, 0, 0, self.steps)

    def following(self, step: Step) -> Step:
        """The next step, in the next epoch where this one ends; it may lie beyond the last epoch."""
        after = Step(step.epoch, step.base, step.step + 1, step.steps)
        return self.next_epoch(after) if after.at_epoch_end else after

    def keys(self, cursor: Cursor) -> Iterator[tuple[int, int]]:
        """(epoch, index) of every batch from the cursor on, in order."""
        step = self.start(cursor)
        while not self.is_over(step) and (self.steps or not step.at_epoch_end):
            for number in range(step.step, step.steps):
                yield step.epoch, step.base + number * self.world + self.rank
            step = self.next_epoch(step)

    def is_over(self, step: Step) -> bool:
        return self.epochs is not None and step.epoch >= self.epochs

    def distance(self, here: Step, epoch: int, index: int) -> int | None:
        """Steps from `here` to batch epoch:index; None when it is behind, beyond the end, or another rank's."""
        if epoch < here.epoch or (self.epochs is not None and epoch >= self.epochs):
            return None
        same = epoch == here.epoch
        step, other = divmod(index - (here.base if same else 0) - self.rank, self.world)
        if other or not (here.step if same else 0) <= step < (here.steps if same else self.steps):
            return None
        if same:
            return step - here.step
        return (here.steps - here.step) + (epoch - here.epoch - 1) * self.steps + step
