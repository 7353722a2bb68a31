"""All ranks together walk through exactly the rest of an epoch, whatever the world was before."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.core.sampler import walked
from streamd.core.spec import Cursor, Segment, Uneven
from streamd.core.steps import Step, Walk

UNEVEN: Final[tuple[Uneven, ...]] = ("drop", "pad")


def cursor_at(base: int) -> Cursor:
    return Cursor(2, (Segment(0, base, 0, 1),)) if base else Cursor(2)


def rest(walk: Walk, cursor: Cursor) -> list[int]:
    """The indices that a rank takes from the cursor to its epoch's end."""
    step, indices = walk.start(cursor), []
    while not step.at_epoch_end and step.epoch == cursor.epoch:
        indices.append(walk.index(step))
        step = walk.following(step)
    return indices


@pytest.mark.parametrize(("world", "uneven"), list(product(range(1, 7), UNEVEN)))
def test_the_ranks_together_take_exactly_the_rest_in_equal_steps(world: int, uneven: Uneven) -> None:
    for batches, base in product(range(14), range(16)):
        ranks = [rest(Walk(batches, rank, world, uneven, None), cursor_at(base)) for rank in range(world)]
        assert len({len(indices) for indices in ranks}) == 1
        taken = sorted(index for indices in ranks for index in indices)
        left = max(0, batches - base)
        end = base + (-(-left // world) * world if uneven == "pad" else left // world * world)
        assert taken == list(range(base, end))
        assert 0 <= (end - batches if uneven == "pad" else batches - end) < world or base > batches


def test_a_rank_takes_its_batches_in_order() -> None:
    assert rest(Walk(20, 2, 3, "drop", None), cursor_at(4)) == [6, 9, 12, 15, 18]


@pytest.mark.parametrize("worlds", [(4, 3, 4), (1, 8, 1), (2, 2), (3,), (5, 4, 3, 2, 1)])
@pytest.mark.parametrize("uneven", UNEVEN)
def test_the_world_may_change_in_mid_epoch(worlds: tuple[int, ...], uneven: Uneven) -> None:
    batches, cursor, taken = 61, Cursor(), list[int]()
    for number, world in enumerate(worlds):
        walks = [Walk(batches, rank, world, uneven, None) for rank in range(world)]
        steps = walks[0].start(cursor).steps if number == len(worlds) - 1 else 3
        begun = cursor
        for walk in walks:
            taken += rest(walk, begun)[:steps]
        saver = world - 1  # any rank's token serves all
        for _ in range(steps):
            cursor = cursor.after_step(saver, world)
    lost = (batches - cursor.base) if uneven == "drop" else 0
    assert sorted(set(taken) & set(range(batches))) == list(range(batches - lost))
    assert len(taken) == len(set(taken))
    assert 0 <= lost < worlds[-1]


def test_a_history_walks_through_what_its_rank_took() -> None:
    cursor, taken = Cursor(), list[int]()
    for rank, world, steps in ((3, 4, 2), (0, 3, 3), (2, 4, 1)):
        walk = Walk(40, rank, world, "drop", None)
        taken += rest(walk, cursor)[:steps]
        for _ in range(steps):
            cursor = cursor.after_step(rank, world)
    assert taken == [3, 7, 8, 11, 14, 19]
    assert [index for walk in walked(cursor.history) for index in walk] == taken


def test_a_walk_starts_behind_what_the_cursor_has_behind_it() -> None:
    assert Walk(20, 1, 3, "drop", None).start(Cursor(5, (Segment(0, 2, 0, 4),))) == Step(5, 8, 0, 4)


def test_the_step_after_an_epochs_last_is_the_first_of_the_next() -> None:
    walk = Walk(7, 0, 3, "drop", None)
    assert walk.steps == 2
    assert walk.following(Step(4, 0, 0, 2)) == Step(4, 0, 1, 2)
    assert walk.following(Step(4, 0, 1, 2)) == Step(5, 0, 0, 2)
    assert walk.following(Step(4, 3, 0, 1)) == Step(5, 0, 0, 2)


def test_a_walk_is_over_after_its_epochs_and_never_without_a_number() -> None:
    assert [Walk(7, 0, 1, "drop", 2).is_over(Step(epoch, 0, 0, 7)) for epoch in range(4)] == [False, False, True, True]
    assert Walk(7, 0, 1, "drop", 0).is_over(Step(0, 0, 0, 7))
    assert not Walk(7, 0, 1, "drop", None).is_over(Step(10**9, 0, 0, 7))


def test_an_epoch_too_short_for_the_world_ends_at_once() -> None:
    walk = Walk(3, 0, 4, "drop", None)
    assert walk.start(Cursor()).at_epoch_end
    assert walk.steps == 0
    assert not Walk(3, 0, 4, "pad", None).start(Cursor()).at_epoch_end


# --- distance


def naive_distances(walk: Walk, here: Step) -> dict[tuple[int, int], int]:
    """How far the batches of this epoch and the next two are, by walking there."""
    far: dict[tuple[int, int], int] = {}
    step, count = here, 0
    while step.epoch <= here.epoch + 2 and not walk.is_over(step):
        far[step.epoch, walk.index(step)] = count
        step, count = walk.following(step), count + 1
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
    batches: int, world: int, base: int, uneven: Uneven, epochs: int | None, data: st.DataObject
) -> None:
    walk = Walk(batches, data.draw(st.integers(0, world - 1)), world, uneven, epochs)
    here = walk.start(cursor_at(base))
    if walk.steps == 0 or here.steps == 0:
        return
    here = Step(here.epoch, here.base, data.draw(st.integers(0, here.steps - 1)), here.steps)
    far = naive_distances(walk, here)
    for epoch, index in product(range(here.epoch - 1, here.epoch + 3), range(-2, batches + base + 2 * world + 2)):
        assert walk.distance(here, epoch, index) == far.get((epoch, index)), (epoch, index)


def test_at_an_epochs_end_the_next_epochs_first_batch_is_what_comes_now() -> None:
    walk = Walk(6, 1, 2, "drop", None)
    ended = Step(0, 0, 3, 3)
    assert ended.at_epoch_end
    assert walk.distance(ended, 1, 1) == 0
    assert walk.distance(ended, 0, 5) is None


def test_distance_grows_by_one_a_step() -> None:
    walk = Walk(11, 1, 3, "pad", 4)
    here = walk.start(Cursor())
    steps = [here]
    while not walk.is_over(steps[-1]):
        steps.append(walk.following(steps[-1]))
    distances = [walk.distance(here, step.epoch, walk.index(step)) for step in steps[:-1]]
    assert distances == list(range(16))
    assert all(one.epoch <= other.epoch for one, other in pairwise(steps))
