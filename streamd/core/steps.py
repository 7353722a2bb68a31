"""The batches of one rank of a stream, step by step and epoch by epoch. Scheduler and client share this arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from streamd.core.spec import Cursor, UnevenPolicy, count_steps_left


class StepPosition(msgspec.Struct, frozen=True, gc=False):
    """A rank's position: step `step` of the `steps` from `base` on in `epoch`; at the epoch's end they are equal."""

    epoch: int
    base: int
    step: int
    steps: int

    @property
    def is_at_epoch_end(self) -> bool:
        return self.step >= self.steps


@dataclass(frozen=True, slots=True)
class RankSteps:
    """The steps of rank `rank` of `world`: in step k it takes batch base + k * world + rank.

    An epoch has `batches` batches. `epochs` is the number of epochs in total, None without end.
    """

    batches: int
    rank: int
    world: int
    uneven: UnevenPolicy
    epochs: int | None

    def step_after(self, cursor: Cursor) -> StepPosition:
        """Returns the first step after the cursor's history."""
        return StepPosition(
            cursor.epoch,
            cursor.next_base_index,
            0,
            count_steps_left(cursor.next_base_index, self.world, self.batches, self.uneven),
        )

    @property
    def steps_per_epoch(self) -> int:
        """The number of steps of a whole epoch."""
        return count_steps_left(0, self.world, self.batches, self.uneven)

    def batch_index(self, step: StepPosition) -> int:
        return step.base + step.step * self.world + self.rank

    def start_of_next_epoch(self, step: StepPosition) -> StepPosition:
        return StepPosition(step.epoch + 1, 0, 0, self.steps_per_epoch)

    def next_step(self, step: StepPosition) -> StepPosition:
        """Returns the next step, the first of the next epoch at an epoch's end; it may lie beyond the last epoch."""
        after = StepPosition(step.epoch, step.base, step.step + 1, step.steps)
        return self.start_of_next_epoch(after) if after.is_at_epoch_end else after

    def iterate_batches(self, cursor: Cursor) -> Iterator[tuple[int, int]]:
        """Yields (epoch, index) of every batch from the cursor on, in order."""
        step = self.step_after(cursor)
        # A world that is larger than the epoch has no steps at all. Without this test it would go through empty epochs
        # for ever.
        while not self.is_beyond_end(step) and (self.steps_per_epoch or not step.is_at_epoch_end):
            for number in range(step.step, step.steps):
                yield step.epoch, step.base + number * self.world + self.rank
            step = self.start_of_next_epoch(step)

    def is_beyond_end(self, step: StepPosition) -> bool:
        return self.epochs is not None and step.epoch >= self.epochs

    def count_steps_to(self, here: StepPosition, epoch: int, index: int) -> int | None:
        """Returns the steps from `here` to batch epoch:index; None if it is behind, past the end, or another rank's."""
        if epoch < here.epoch or (self.epochs is not None and epoch >= self.epochs):
            return None
        # In step k a rank takes batch base + k * world + rank, so the index gives the step, and a remainder shows that
        # the batch is another rank's. Only the present epoch may begin at another base than 0.
        same = epoch == here.epoch
        step, other = divmod(index - (here.base if same else 0) - self.rank, self.world)
        if other or not (here.step if same else 0) <= step < (here.steps if same else self.steps_per_epoch):
            return None
        if same:
            return step - here.step
        return (here.steps - here.step) + (epoch - here.epoch - 1) * self.steps_per_epoch + step


def count_own_steps(step: int, steps: int, batch_size: int, own_size: int, own_steps: int) -> int:
    """Returns the steps of `own_size` rows that a trainer has done after `step` of an epoch's `steps` batches."""
    return own_steps if step >= steps else min(own_steps, step * batch_size // own_size)
