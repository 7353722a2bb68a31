"""Tracks which batches a model has finished, when batches are fetched ahead of their steps. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class FinishedSteps:
    """The position after the last batch on which a model was trained.

    Batches finish in the order in which they are fetched. A trainer that executes several steps at once may report more
    steps than there were at an epoch's end, so only fetched batches count as finished.
    """

    def __init__(self) -> None:
        self._fetched: deque[Callable[[], str]] = deque()
        self._steps = 0
        self._place: Callable[[], str] | None = None

    @property
    def last_finished_token(self) -> str | None:
        """The token of the last finished batch; None before the first."""
        return None if self._place is None else self._place()

    @property
    def is_all_finished(self) -> bool:
        """Whether the model has finished every batch that was fetched."""
        return not self._fetched

    def begin_epoch(self) -> None:
        """Begins an epoch: forgets unfinished batches, and counts steps from 0."""
        self._fetched.clear()
        self._steps = 0

    def add_fetched_batch(self, make_token: Callable[[], str]) -> None:
        """Adds a batch that goes to the model. `make_token` is called only if the token is needed."""
        self._fetched.append(make_token)

    def mark_steps_finished(self, steps: int) -> int:
        """Marks the epoch's first `steps` steps as finished, and returns how many of them really are."""
        while self._steps < steps and self._fetched:
            self._place = self._fetched.popleft()
            self._steps += 1
        return self._steps
