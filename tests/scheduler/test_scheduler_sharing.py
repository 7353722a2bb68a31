"""How trainers come to share decoded batches, and what it costs: whole runs in virtual time."""

from __future__ import annotations

import random

import pytest
from support.virtual_machine import Machine, Pace

from streamd.limits import CATCH_UP_S

BATCH_S = 0.25  # what a batch costs when all decoders are busy: an epoch of 20 s has 80
FAST_S = 0.5 * BATCH_S  # a trainer that could take twice what is decoded


def machine(
    *paces: Pace, epoch_s: float, slots: int = 64, decoders: int = 2, tasks: int = 1, seed: int | None = None
) -> Machine:
    """A machine on which an epoch takes `epoch_s` to decode, after all trainers have gone their way."""
    made = Machine(
        *paces,
        batches=round(epoch_s / BATCH_S),
        task_s=BATCH_S * decoders / tasks,
        decoders=decoders,
        tasks=tasks,
        slots=slots,
        uneven=None if seed is None else random.Random(seed),  # noqa: S311 - no secret, a run that can be repeated
    )
    made.run()
    for loop in made.loops:
        assert loop.over
        assert loop.wronged_s == 0.0, "nobody waits for what a decoder with nothing to do could make"
    return made


def epochs_s(made: Machine) -> list[list[float]]:
    return [[round(one_s) for one_s in loop.epochs_s()] for loop in made.loops]


@pytest.mark.parametrize(
    ("epoch_s", "decoders", "tasks", "slots"),
    [
        (20.0, 2, 1, 12),
        (20.0, 4, 8, 64),
        pytest.param(600.0, 2, 1, 64, marks=pytest.mark.long),
        pytest.param(600.0, 4, 8, 12, marks=pytest.mark.long),
    ],
)
def test_a_trainer_five_seconds_late_shares_batches_before_the_epoch_ends(
    epoch_s: float, decoders: int, tasks: int, slots: int
) -> None:
    late = machine(
        Pace(0, FAST_S, epochs=2),
        Pace(5, FAST_S, epochs=2),
        epoch_s=epoch_s,
        decoders=decoders,
        tasks=tasks,
        slots=slots,
    )

    assert late.decodes_per_batch(15, 2 * epoch_s) < 1.05
    assert late.loops[0].epochs_s()[0] <= epoch_s + 6.0, "what the other missed is made up once"
    assert epochs_s(late)[0][1] == epochs_s(late)[1][1] == epoch_s


def test_with_enough_memory_a_late_trainer_finds_missed_batches_and_costs_others_nothing() -> None:
    late = machine(Pace(0, FAST_S, epochs=2), Pace(5, FAST_S, epochs=2), epoch_s=20.0)

    assert len(late.made_s) == 160
    assert epochs_s(late) == [[20, 20], [16, 20]]


def test_a_trainer_that_starts_after_an_epoch_still_finds_it_in_memory() -> None:
    late = machine(Pace(0, FAST_S, epochs=8), Pace(5, FAST_S, epochs=8), epoch_s=4.0)

    assert len(late.made_s) == 8 * 16


@pytest.mark.parametrize("seed", range(4))
def test_four_trainers_five_seconds_apart_share_batches_in_the_first_epoch(seed: int) -> None:
    four = machine(*(Pace(5.0 * each, 0.6 * BATCH_S, epochs=2) for each in range(4)), epoch_s=60.0, seed=seed)

    assert four.decodes_per_batch(35, 100) < 1.05
    assert max(max(loop.epochs_s()) for loop in four.loops) < 60.0 + CATCH_UP_S


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("steps", [(0.9, 0.8), (0.95, 0.95), (0.5, 0.1)])
def test_trainers_in_step_stay_in_step_with_different_speeds_and_batch_costs(
    steps: tuple[float, float], seed: int
) -> None:
    two = machine(*(Pace(0, step * BATCH_S, epochs=3) for step in steps), epoch_s=60.0, slots=16, seed=seed)

    assert len(two.made_s) <= 1.03 * 3 * 240


@pytest.mark.parametrize("seed", range(4))
def test_a_trainer_slightly_slower_than_the_decoders_costs_little_with_short_memory(seed: int) -> None:
    two = machine(Pace(0, 1.05 * BATCH_S, 3), Pace(0, FAST_S, 3), epoch_s=60.0, slots=16, seed=seed)

    assert len(two.made_s) <= 1.2 * 3 * 240
    assert sum(two.loops[0].epochs_s()) <= 1.2 * 180.0


@pytest.mark.parametrize("step", [1.05, 1.5, 1.9, 2.5])
def test_trainers_slower_than_the_decoders_keep_their_pace_and_share_batches(step: float) -> None:
    two = machine(Pace(0, step * BATCH_S, epochs=2), Pace(5, step * BATCH_S, epochs=2), epoch_s=60.0)

    assert [loop.waited_s < 2.0 for loop in two.loops] == [True, True]
    assert len(two.made_s) < 1.05 * 480


def test_a_pausing_trainer_delays_nobody_and_shares_batches_again_afterwards() -> None:
    pauses_s = {(epoch, 0): 8.0 for epoch in (1, 2)}
    two = machine(Pace(0, FAST_S, epochs=3), Pace(0, FAST_S, 3, pauses_s), epoch_s=60.0, slots=24)

    assert epochs_s(two)[0][0] == 60
    assert all(one_s <= 60.0 + 8.0 for one_s in two.loops[0].epochs_s())
    assert two.decodes_per_batch(60 + 20, 120) < 1.05
    assert two.decodes_per_batch(120 + 20, 180) < 1.05


def test_a_pause_that_fits_in_memory_costs_nothing() -> None:
    pauses_s = {(epoch, 0): 30.0 for epoch in (1, 2)}
    two = machine(Pace(0, FAST_S, epochs=3), Pace(0, FAST_S, 3, pauses_s), epoch_s=60.0, slots=160)

    assert epochs_s(two) == [[60, 60, 60], [60, 60, 60]]
    assert len(two.made_s) == 3 * 240


def test_a_compiling_trainer_does_not_slow_down_the_other() -> None:
    two = machine(Pace(0, FAST_S, epochs=4), Pace(0, FAST_S, 4, {(0, 0): 30.0}), epoch_s=60.0, slots=32)

    assert two.loops[0].count(30.0) == pytest.approx(30.0 / BATCH_S, abs=3)


def test_a_gap_too_large_for_one_epoch_is_closed_in_several() -> None:
    two = machine(Pace(0, FAST_S, epochs=6), Pace(0, FAST_S, 6, {(0, 0): 30.0}), epoch_s=60.0, slots=32)

    assert epochs_s(two)[0][2:] == epochs_s(two)[1][2:] == [60, 60, 60, 60]
    assert sum(two.loops[0].epochs_s()) < 6 * 60.0 + 2 * 30.0


@pytest.mark.parametrize(("slow", "slots", "fast_at_most_s"), [(1.5, 32, 170), (1.5, 160, 121), (4.0, 32, 150)])
def test_a_fast_trainer_never_waits_for_one_slower_than_the_decoders(
    slow: float, slots: int, fast_at_most_s: float
) -> None:
    two = machine(Pace(0, FAST_S), Pace(0, slow * BATCH_S), epoch_s=120.0, slots=slots)

    assert two.loops[0].epochs_s()[0] <= fast_at_most_s
    assert two.loops[1].epochs_s()[0] == pytest.approx(120.0 * slow, rel=0.02), "it goes as fast as it can"


def test_two_runs_of_two_ranks_share_batches_rank_by_rank() -> None:
    ranks = [Pace(start_s, FAST_S, epochs=2, rank=rank, world=2) for start_s in (0.0, 5.0) for rank in (0, 1)]
    four = machine(*ranks, epoch_s=20.0, slots=24)

    assert four.decodes_per_batch(20, 40) == pytest.approx(2.0, abs=0.1), "a step is a batch for each rank"


@pytest.mark.parametrize("slots", [9, 10, 12, 16])
def test_trainers_share_batches_with_memory_for_little_more_than_two_credits(slots: int) -> None:
    two = machine(Pace(0, FAST_S, epochs=2), Pace(5, FAST_S, epochs=2), epoch_s=20.0, slots=slots)

    assert two.decodes_per_batch(20, 40) < 1.05
    assert two.loops[0].epochs_s()[0] <= 20.0 + 6.5
