"""The rest of an epoch in steps of another size, and the messages about it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.frameworks.keras.resume import (
    InterruptedEpoch,
    StepGeometry,
    count_remaining_steps,
    describe_learning_rate_change,
    describe_step_change,
)

pytestmark = pytest.mark.train

ONE = StepGeometry(rows=8, world=1, steps=4, whole=False)
TWO = StepGeometry(rows=8, world=2, steps=4, whole=False)
WHOLE = StepGeometry(rows=8, world=1, steps=13, whole=True)


@pytest.mark.parametrize(
    ("then", "now", "rest"),
    [
        (ONE, ONE, 3),
        (ONE, TWO, 2),  # the last half of a step is one
        (TWO, ONE, 6),
        (ONE, StepGeometry(rows=4, world=1, steps=4, whole=False), 6),  # more than a whole epoch has
        (ONE, StepGeometry(rows=64, world=4, steps=1, whole=False), 1),
        (ONE, WHOLE, 3),
        (WHOLE, ONE, 7),
        (WHOLE, WHOLE, 7),
    ],
    ids=str,
)
def test_the_samples_left_of_an_epoch_take_as_many_steps_as_hold_them(
    then: StepGeometry, now: StepGeometry, rest: int
) -> None:
    assert count_remaining_steps(InterruptedEpoch(then, length=then.steps, done=1, own=then.whole), now, left=7) == rest


@settings(derandomize=True, deadline=None)
@given(*[st.integers(1, 64)] * 5, st.data())
def test_no_sample_is_left_behind_and_no_step_is_empty(
    rows: int, world: int, more_rows: int, more_world: int, steps: int, data: st.DataObject
) -> None:
    done = data.draw(st.integers(0, steps - 1))
    then, now = StepGeometry(rows, world, steps, whole=False), StepGeometry(more_rows, more_world, steps, whole=False)
    rest = count_remaining_steps(InterruptedEpoch(then, steps, done, own=False), now, left=0)
    samples = (steps - done) * rows * world
    assert (rest - 1) * now.step_samples < samples <= rest * now.step_samples


@pytest.mark.parametrize(
    ("then", "now", "rest", "said"),
    [
        (ONE, ONE, 3, None),
        (WHOLE, WHOLE, None, None),
        (
            ONE,
            TWO,
            1,
            (
                "the run was saved with batches of 8, and continues with batches of 8 for each of 2 ranks; before "
                "that, the rest of the interrupted epoch takes 1 step"
            ),
        ),
        (
            WHOLE,
            StepGeometry(rows=16, world=1, steps=7, whole=True),
            None,
            "the run was saved with batches of 8, and continues with batches of 16",
        ),
        (
            ONE,
            StepGeometry(rows=8, world=1, steps=6, whole=False),
            2,
            (
                "an epoch had 4 steps, and from here on has the 6 of this program; before that, the rest of the "
                "interrupted epoch takes 2 steps"
            ),
        ),
        (
            WHOLE,
            StepGeometry(rows=8, world=16, steps=1, whole=True),
            0,
            (
                "the run was saved with batches of 8, and continues with batches of 8 for each of 16 ranks; what is "
                "left of the interrupted epoch is less than one step, so that epoch is over, and it is not validated"
            ),
        ),
    ],
)
def test_a_changed_size_is_reported_with_both_values(
    then: StepGeometry, now: StepGeometry, rest: int | None, said: str | None
) -> None:
    assert describe_step_change(then, now, rest, left=rest or 0) == said


@pytest.mark.parametrize(
    ("rest", "left", "first"),
    [
        (None, 9, ", but the first such epoch has only the 9 that are left of the stream's epoch"),
        (None, 13, ""),
        (None, 0, ""),
        (3, 12, ", but the first such epoch has only the 9 that are left of the stream's epoch"),
        (3, 3, ""),
        # they reach into its next one
        (3, 1, ", but the first such epoch has only the 11 that are left of the stream's epoch"),
    ],
)
def test_a_message_tells_when_whole_epochs_begin_with_a_shorter_one(rest: int | None, left: int, first: str) -> None:
    said = describe_step_change(ONE, WHOLE, rest, left)
    assert str(said).partition(";")[0] == f"an epoch had 4 steps, and from here on has the 13 of this program{first}"


@pytest.mark.parametrize(
    ("begun", "kept", "given", "said"),
    [
        (0.1, 0.1, 0.1, None),
        (0.1, 0.025, 0.1, None),  # a callback has lowered it
        (0.1, 0.025, 0.025, None),  # a second fit of one process
        (None, None, None, None),
        (0.1, 0.025, 0.5, "the learning rate is 0.025, as it was saved; this program's 0.5 is ignored: set "),
        ("Decay of {'rate': 1}", None, "Decay of {'rate': 1}", None),
        ("Decay of {'rate': 1}", None, "Decay of {'rate': 2}", "this program's schedule is used, Decay of {'rate': 2}"),
    ],
)
def test_a_message_tells_which_of_two_learning_rates_applies(
    begun: float | str | None, kept: float | None, given: float | str | None, said: str | None
) -> None:
    line = describe_learning_rate_change(begun, kept, given)
    assert line is None if said is None else said in str(line)
