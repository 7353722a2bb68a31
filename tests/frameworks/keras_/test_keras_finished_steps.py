"""Which batches a model has finished."""

from __future__ import annotations

from collections import deque

import pytest

from streamd.frameworks.keras.calls import PendingSteps

pytestmark = pytest.mark.train


def fetching(*tokens: str) -> PendingSteps[str]:
    return PendingSteps(deque(tokens))


def finish(steps: PendingSteps[str], count: int) -> int:
    """Finishes the epoch's first `count` steps, and returns how many of them really are finished."""
    steps.finish_steps(count)
    return steps.done


def test_batches_fetched_ahead_are_not_finished() -> None:
    finished = fetching("a", "b", "c", "d")
    assert finished.last is None
    assert finish(finished, 2) == 2
    assert finished.last == "b"


def test_an_execution_longer_than_the_epoch_finishes_only_the_steps_there_were() -> None:
    finished = fetching("a", "b", "c")
    assert finish(finished, 2) == 2
    assert finish(finished, 4) == 3
    assert finished.last == "c"


def test_each_finished_step_is_taken_once_in_order() -> None:
    steps = fetching(*"abcde")
    assert [steps.finish_steps(count) for count in (1, 1, 3, 9)] == [["a"], [], ["b", "c"], ["d", "e"]]


def test_a_new_epoch_counts_from_0_and_keeps_the_token_until_its_first_step() -> None:
    finished = fetching("a", "left")
    finish(finished, 1)
    finished.begin_epoch()
    assert finish(finished, 1) == 0
    assert finished.last == "a"
    finished.unfinished.append("b")
    assert finish(finished, 1) == 1
    assert finished.last == "b"
