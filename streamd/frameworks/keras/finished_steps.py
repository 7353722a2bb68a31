"""Tracks which batches a model has finished, when batches are fetched ahead of their steps. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Step = TypeVar("Step")


class PendingSteps(Generic[Step]):
    """The batches that a model has received and not finished; they finish in the order in which it received them."""

    def __init__(self) -> None:
        self._pending: deque[Step] = deque()
        self._done = 0  # finished steps of the epoch

    @property
    def is_all_finished(self) -> bool:
        """Whether the model has finished every batch that was added."""
        return not self._pending

    def begin_epoch(self) -> None:
        """Begins an epoch: forgets unfinished batches, and counts steps from 0."""
        self._pending.clear()
        self._done = 0

    def add_step(self, step: Step) -> None:
        """Adds a batch that goes to the model."""
        self._pending.append(step)

    def take_finished_steps(self, steps: int) -> list[Step]:
        """Marks the epoch's first `steps` steps as finished, and returns those that are newly so.

        A trainer that executes several steps at once may report more steps than there were at an epoch's end, so only
        batches that were added count.
        """
        new = [self._pending.popleft() for _ in range(min(steps - self._done, len(self._pending)))]
        self._done += len(new)
        return new


class FinishedSteps(PendingSteps[Callable[[], str]]):
    """The position after the last batch on which a model was trained; each step is a function that makes its token."""

    def __init__(self) -> None:
        super().__init__()
        self._place: Callable[[], str] | None = None

    @property
    def last_finished_token(self) -> str | None:
        """The token of the last finished batch; None before the first."""
        return None if self._place is None else self._place()

    def mark_steps_finished(self, steps: int) -> int:
        """Marks the epoch's first `steps` steps as finished, and returns how many of them really are."""
        if finished := self.take_finished_steps(steps):
            self._place = finished[-1]
        return self._done
