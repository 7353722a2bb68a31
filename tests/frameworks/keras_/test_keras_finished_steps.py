"""Which batches a model has finished."""

from __future__ import annotations

from functools import partial

import pytest

from streamd.frameworks.keras.calls import FinishedSteps, PendingSteps

pytestmark = pytest.mark.train


def fetching(*tokens: str) -> FinishedSteps:
    finished = FinishedSteps()
    for token in tokens:
        finished.add_step(partial(str, token))
    return finished


def place(finished: FinishedSteps) -> str | None:
    return finished.last_finished_token


def test_batches_fetched_ahead_are_not_finished() -> None:
    finished = fetching("a", "b", "c", "d")
    assert place(finished) is None
    assert finished.mark_steps_finished(2) == 2
    assert place(finished) == "b"


def test_an_execution_longer_than_the_epoch_finishes_only_the_steps_there_were() -> None:
    finished = fetching("a", "b", "c")
    assert finished.mark_steps_finished(2) == 2
    assert finished.mark_steps_finished(4) == 3
    assert place(finished) == "c"


def test_each_finished_step_is_taken_once_in_order() -> None:
    steps = PendingSteps[str]()
    for each in "abcde":
        steps.add_step(each)
    assert [steps.take_finished_steps(count) for count in (1, 1, 3, 9)] == [["a"], [], ["b", "c"], ["d", "e"]]


def test_a_new_epoch_counts_from_0_and_keeps_the_token_until_its_first_step() -> None:
    finished = fetching("a", "left")
    finished.mark_steps_finished(1)
    finished.begin_epoch()
    assert finished.mark_steps_finished(1) == 0
    assert place(finished) == "a"
    finished.add_step(partial(str, "b"))
    assert finished.mark_steps_finished(1) == 1
    assert place(finished) == "b"
