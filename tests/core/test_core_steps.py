"""All ranks together take exactly the rest of an epoch, whatever the world was before."""

from __future__ import annotations

from itertools import product
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.core.spec import Cursor, RankSteps, Segment, StepPosition, UnevenPolicy, count_own_steps

UNEVEN: Final[tuple[UnevenPolicy, ...]] = ("drop", "pad")


def cursor_at(base: int) -> Cursor:
    return Cursor(2, (Segment(0, base, 0, 1),)) if base else Cursor(2)


def rest(walk: RankSteps, cursor: Cursor) -> list[int]:
    """The indices that a rank takes from the cursor to its epoch's end."""
    step, indices = walk.step_after(cursor), []
    while not step.is_at_epoch_end and step.epoch == cursor.epoch:
        indices.append(walk.batch_index(step))
        step = walk.next_step(step)
    return indices


@pytest.mark.parametrize(("world", "uneven"), list(product(range(1, 7), UNEVEN)))
def test_all_ranks_together_take_exactly_the_rest_in_equal_steps(world: int, uneven: UnevenPolicy) -> None:
    for batches, base in product(range(14), range(16)):
        ranks = [rest(RankSteps(batches, rank, world, uneven, None), cursor_at(base)) for rank in range(world)]
        assert len({len(indices) for indices in ranks}) == 1
        taken = sorted(index for indices in ranks for index in indices)
        left = max(0, batches - base)
        end = base + (-(-left // world) * world if uneven == "pad" else left // world * world)
        assert taken == list(range(base, end))
        assert 0 <= (end - batches if uneven == "pad" else batches - end) < world or base > batches


def test_a_rank_takes_its_batches_in_order() -> None:
    assert rest(RankSteps(20, 2, 3, "drop", None), cursor_at(4)) == [6, 9, 12, 15, 18]


@pytest.mark.parametrize("worlds", [(4, 3, 4), (1, 8, 1), (2, 2), (3,), (5, 4, 3, 2, 1)])
@pytest.mark.parametrize("uneven", UNEVEN)
def test_the_world_may_change_within_an_epoch(worlds: tuple[int, ...], uneven: UnevenPolicy) -> None:
    batches, cursor, taken = 61, Cursor(), list[int]()
    for number, world in enumerate(worlds):
        walks = [RankSteps(batches, rank, world, uneven, None) for rank in range(world)]
        steps = walks[0].step_after(cursor).steps if number == len(worlds) - 1 else 3
        begun = cursor
        for walk in walks:
            taken += rest(walk, begun)[:steps]
        saver = world - 1  # any rank's token serves all
        for _ in range(steps):
            cursor = cursor.after_step(saver, world)
    lost = (batches - cursor.next_base_index) if uneven == "drop" else 0
    assert sorted(set(taken) & set(range(batches))) == list(range(batches - lost))
    assert len(taken) == len(set(taken))
    assert 0 <= lost < worlds[-1]


def test_a_walk_starts_after_the_cursors_last_batch() -> None:
    assert RankSteps(20, 1, 3, "drop", None).step_after(Cursor(5, (Segment(0, 2, 0, 4),))) == StepPosition(5, 8, 0, 4)


def test_the_step_after_an_epochs_last_is_the_first_of_the_next() -> None:
    walk = RankSteps(7, 0, 3, "drop", None)
    assert walk.steps_per_epoch == 2
    assert walk.next_step(StepPosition(4, 0, 0, 2)) == StepPosition(4, 0, 1, 2)
    assert walk.next_step(StepPosition(4, 0, 1, 2)) == StepPosition(5, 0, 0, 2)
    assert walk.next_step(StepPosition(4, 3, 0, 1)) == StepPosition(5, 0, 0, 2)


def test_a_walk_ends_after_its_epochs_or_never_if_they_are_unlimited() -> None:
    two_epochs = RankSteps(7, 0, 1, "drop", 2)
    assert [epoch for epoch in range(4) if two_epochs.is_beyond_end(StepPosition(epoch, 0, 0, 7))] == [2, 3]
    assert RankSteps(7, 0, 1, "drop", 0).is_beyond_end(StepPosition(0, 0, 0, 7))
    assert not RankSteps(7, 0, 1, "drop", None).is_beyond_end(StepPosition(10**9, 0, 0, 7))


def test_an_epoch_too_short_for_the_world_ends_at_once() -> None:
    walk = RankSteps(3, 0, 4, "drop", None)
    assert walk.step_after(Cursor()).is_at_epoch_end
    assert walk.steps_per_epoch == 0
    assert not RankSteps(3, 0, 4, "pad", None).step_after(Cursor()).is_at_epoch_end


# --- distance


def naive_distances(walk: RankSteps, here: StepPosition) -> dict[tuple[int, int], int]:
    """How far the batches of this epoch and the next two are, by walking there."""
    far: dict[tuple[int, int], int] = {}
    step, count = here, 0
    while step.epoch <= here.epoch + 2 and not walk.is_beyond_end(step):
        far[step.epoch, walk.batch_index(step)] = count
        step, count = walk.next_step(step), count + 1
    return far


@settings(derandomize=True, deadline=None, max_examples=300)
@given(
    st.integers(1, 12),
    st.integers(1, 5),
    st.integers(0, 12),
    st.sampled_from(UNEVEN),
    st.sampled_from([None, 2, 3, 4]),
    st.data(),
)
def test_distance_agrees_with_walking_there(
    batches: int, world: int, base: int, uneven: UnevenPolicy, epochs: int | None, data: st.DataObject
) -> None:
    walk = RankSteps(batches, data.draw(st.integers(0, world - 1)), world, uneven, epochs)
    here = walk.step_after(cursor_at(base))
    if walk.steps_per_epoch == 0 or here.steps == 0:
        return
    here = StepPosition(here.epoch, here.base, data.draw(st.integers(0, here.steps - 1)), here.steps)
    far = naive_distances(walk, here)
    for epoch, index in product(range(here.epoch - 1, here.epoch + 3), range(-2, batches + base + 2 * world + 2)):
        assert walk.count_steps_to(here, epoch, index) == far.get((epoch, index)), (epoch, index)


def test_at_an_epochs_end_the_next_batch_is_the_first_of_the_next_epoch() -> None:
    walk = RankSteps(6, 1, 2, "drop", None)
    ended = StepPosition(0, 0, 3, 3)
    assert ended.is_at_epoch_end
    assert walk.count_steps_to(ended, 1, 1) == 0
    assert walk.count_steps_to(ended, 0, 5) is None


@pytest.mark.parametrize(
    ("step", "own_size", "own_steps", "done"),
    [(0, 32, 10, 0), (3, 32, 10, 3), (3, 8, 38, 12), (9, 8, 35, 35), (10, 8, 38, 38), (3, 64, 5, 1), (10, 64, 5, 5)],
)
def test_own_steps_are_counted_in_the_trainers_batch_size(step: int, own_size: int, own_steps: int, done: int) -> None:
    assert count_own_steps(step, 10, 32, own_size, own_steps) == done
