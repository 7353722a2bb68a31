"""Which batches a model has finished, where they are fetched ahead of the steps that take them. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class FinishedSteps:
    """The place behind the last batch that a model was trained on.

    Batches finish in the order in which they are fetched. A trainer that takes several steps at a time says more than
    there were at an epoch's end; only what was fetched can be finished.
    """

    def __init__(self) -> None:
        self._fetched: deque[Callable[[], str]] = deque()
        self._steps = 0
        self._place: Callable[[], str] | None = None

    @property
    def last_finished_token(self) -> str | None:
        """Of the last batch that was finished; None before the first."""
        return None if self._place is None else self._place()

    @property
    def is_all_finished(self) -> bool:
        """Whether the model has finished every batch that was fetched."""
        return not self._fetched

    def begin_epoch(self) -> None:
        """An epoch begins, and so does the count of its steps."""
        self._fetched.clear()
        self._steps = 0

    def add_fetched_batch(self, make_token: Callable[[], str]) -> None:
        """The next batch is on its way to the model. A token is made only when it is wanted."""
        self._fetched.append(make_token)

    def mark_steps_finished(self, steps: int) -> int:
        """Takes word that `steps` of the epoch are done, and returns how many are."""
        while self._steps < steps and self._fetched:
            self._place = self._fetched.popleft()
            self._steps += 1
        return self._steps
