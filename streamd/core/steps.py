"""The way of one rank through its stream, step by step, epoch by epoch: the same arithmetic for scheduler and
client.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from streamd.core.spec import Cursor, UnevenPolicy, count_steps_left


class StepPosition(msgspec.Struct, frozen=True, gc=False):
    """A place on the way: step `step` of the `steps` from `base` in `epoch`."""

    epoch: int
    base: int
    step: int
    steps: int

    @property
    def is_at_epoch_end(self) -> bool:
        return self.step >= self.steps


@dataclass(frozen=True, slots=True)
class RankSteps:
    """Rank `rank` of `world` takes base + k * world + rank of `batches` an epoch; `epochs` in total, None runs on."""

    batches: int
    rank: int
    world: int
    uneven: UnevenPolicy
    epochs: int | None

    def step_after(self, cursor: Cursor) -> StepPosition:
        """The step that follows what the cursor has behind it."""
        return StepPosition(
            cursor.epoch,
            cursor.next_base_index,
            0,
            count_steps_left(cursor.next_base_index, self.world, self.batches, self.uneven),
        )

    @property
    def steps_per_epoch(self) -> int:
        """Steps of a whole epoch."""
        return count_steps_left(0, self.world, self.batches, self.uneven)

    def batch_index(self, step: StepPosition) -> int:
        return step.base + step.step * self.world + self.rank

    def start_of_next_epoch(self, step: StepPosition) -> StepPosition:
        return StepPosition(step.epoch + 1, 0, 0, self.steps_per_epoch)

    def next_step(self, step: StepPosition) -> StepPosition:
        """The next step, in the next epoch where this one ends; it may lie beyond the last epoch."""
        after = StepPosition(step.epoch, step.base, step.step + 1, step.steps)
        return self.start_of_next_epoch(after) if after.is_at_epoch_end else after

    def iterate_batches(self, cursor: Cursor) -> Iterator[tuple[int, int]]:
        """(epoch, index) of every batch from the cursor on, in order."""
        step = self.step_after(cursor)
        while not self.is_beyond_end(step) and (self.steps_per_epoch or not step.is_at_epoch_end):
            for number in range(step.step, step.steps):
                yield step.epoch, step.base + number * self.world + self.rank
            step = self.start_of_next_epoch(step)

    def is_beyond_end(self, step: StepPosition) -> bool:
        return self.epochs is not None and step.epoch >= self.epochs

    def count_steps_to(self, here: StepPosition, epoch: int, index: int) -> int | None:
        """Steps from `here` to batch epoch:index; None when it is behind, beyond the end, or another rank's."""
        if epoch < here.epoch or (self.epochs is not None and epoch >= self.epochs):
            return None
        same = epoch == here.epoch
        step, other = divmod(index - (here.base if same else 0) - self.rank, self.world)
        if other or not (here.step if same else 0) <= step < (here.steps if same else self.steps_per_epoch):
            return None
        if same:
            return step - here.step
        return (here.steps - here.step) + (epoch - here.epoch - 1) * self.steps_per_epoch + step


def count_own_steps(step: int, steps: int, batch_size: int, own_size: int, own_steps: int) -> int:
    """Steps of `own_size` rows that a trainer has done when it took `step` of an epoch's `steps` batches."""
    return own_steps if step >= steps else min(own_steps, step * batch_size // own_size)
