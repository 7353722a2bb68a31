"""Which batches a model has finished."""

from __future__ import annotations

from functools import partial

from streamd.frameworks.keras.finished_steps import FinishedSteps, PendingSteps


def fetching(*tokens: str) -> FinishedSteps:
    finished = FinishedSteps()
    for token in tokens:
        finished.add_step(partial(str, token))
    return finished


def place(finished: FinishedSteps) -> str | None:
    return finished.last_finished_token


def test_what_was_fetched_ahead_is_not_finished() -> None:
    finished = fetching("a", "b", "c", "d")
    assert place(finished) is None
    assert finished.mark_steps_finished(2) == 2
    assert place(finished) == "b"


def test_an_execution_of_more_steps_than_an_epoch_has_left_finishes_those_there_were() -> None:
    finished = fetching("a", "b", "c")
    assert finished.mark_steps_finished(2) == 2
    assert finished.mark_steps_finished(4) == 3
    assert place(finished) == "c"


def test_each_step_is_given_once_in_order_and_the_same_word_twice_finishes_nothing() -> None:
    steps = PendingSteps[str]()
    for each in "abcde":
        steps.add_step(each)
    assert [steps.take_finished_steps(count) for count in (1, 1, 3, 9)] == [["a"], [], ["b", "c"], ["d", "e"]]


def test_an_epoch_counts_from_its_own_begin_and_the_place_stays_until_its_first_step() -> None:
    finished = fetching("a", "left")
    finished.mark_steps_finished(1)
    finished.begin_epoch()
    assert finished.mark_steps_finished(1) == 0
    assert place(finished) == "a"
    finished.add_step(partial(str, "b"))
    assert finished.mark_steps_finished(1) == 1
    assert place(finished) == "b"
