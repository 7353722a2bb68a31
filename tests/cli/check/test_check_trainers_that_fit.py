"""The number of trainers that fit into memory is what the scheduler would admit."""

from __future__ import annotations

import pytest

from streamd.cli.check.trainers_that_fit import TrainerCapacity, compute_trainer_capacity
from streamd.core.spec import StreamShape
from streamd.limits import DEFAULT_CREDIT, MAX_SESSIONS, MIB, MIN_CREDIT
from streamd.scheduler.admission import SchedulerLimits, compute_production_slots

TRAIN = StreamShape("train", 100, MIB, 1)
WORKERS = 2


def compute_capacity(memory: int, *streams: StreamShape) -> TrainerCapacity:
    return compute_trainer_capacity(streams or [TRAIN], SchedulerLimits(memory, WORKERS))


def test_trainers_at_ease_leave_room_for_one_more() -> None:
    memory = 73 * MIB
    assert memory == (4 * DEFAULT_CREDIT + compute_production_slots(TRAIN, SchedulerLimits(memory, WORKERS))) * MIB
    assert (compute_capacity(memory).at_ease, compute_capacity(memory - 1).at_ease) == (3, 2)


def test_at_most_counts_trainers_with_the_least_credit() -> None:
    ahead = compute_production_slots(TRAIN, SchedulerLimits(40 * MIB, WORKERS))
    memory = (5 * MIN_CREDIT + ahead) * MIB
    assert (compute_capacity(memory).at_most, compute_capacity(memory - 1).at_most) == (5, 4)


def test_the_refusal_explains_why_no_trainer_fits() -> None:
    found = compute_capacity(2 * MIB)
    assert (found.at_ease, found.at_most) == (0, 0)
    assert found.refusal is not None
    assert "one batch takes 1.0 MiB" in found.refusal


def test_trainers_that_read_several_streams_need_room_for_all_of_them() -> None:
    validation = StreamShape("validation", 10, MIB, 1)
    both = compute_capacity(40 * MIB, TRAIN, validation)
    assert 0 < both.at_most <= compute_capacity(40 * MIB).at_most // 2
    tight = compute_capacity(4 * MIB, TRAIN, validation)
    assert (tight.at_most, tight.refusal is not None) == (0, True)
    assert compute_capacity(4 * MIB).at_most == 1


@pytest.mark.parametrize(("streams", "most"), [(1, MAX_SESSIONS), (2, MAX_SESSIONS // 2)])
def test_the_capacity_is_at_most_the_session_limit(streams: int, most: int) -> None:
    shapes = [StreamShape(f"s{number}", 100, 4096, 1) for number in range(streams)]
    found = compute_capacity(1000 * MIB, *shapes)
    assert found == TrainerCapacity(found.at_ease, most)
    assert 0.9 * most < found.at_ease <= most, "all but for the slots that the workers need"
