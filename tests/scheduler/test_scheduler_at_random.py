"""Hundreds of seeded runs of the simulated daemon, all rules checked after every event; failures name their seed."""

from __future__ import annotations

import random

import pytest
from support.scheduler_driver import MIB, Trainer, World, train, wander

from streamd.core.spec import StreamShape, UnevenPolicy
from streamd.scheduler.admission import SchedulerLimits, compute_production_slots

RUNS = 200
SIZES = (MIB, 2 * MIB, 3 * MIB + 4096)


def random_world(rng: random.Random) -> World:
    shapes = [
        train(rng.randint(5, 40), name=name, slot_bytes=rng.choice(SIZES), tasks=rng.choice((1, 1, 2, 8)))
        for name in ("train", "validation")[: rng.choice((1, 1, 2))]
    ]
    workers = rng.randint(1, 4)
    return World(*shapes, memory=rng.choice((smallest(shapes), 32 * MIB, 64 * MIB, 256 * MIB)), workers=workers)


def smallest(shapes: list[StreamShape]) -> int:
    """The least that admits anybody to every stream: two slots for the session, one for the workers."""
    return 3 * max(shape.slot_bytes for shape in shapes)


def random_trainer(world: World, rng: random.Random) -> Trainer:
    size = rng.choice((1, 1, 1, 2, 3))
    uneven: UnevenPolicy = rng.choice(("drop", "pad"))
    stream = rng.choice(list(world.shapes))
    place = rng.randrange(size), size, uneven, rng.randint(1, 3)
    return Trainer(stream, *place, rng.choice((rng.randint(1, 9), 16, 64)), user=rng.choice((0, 0, 1, 2)))


@pytest.mark.parametrize("part", [0, 1, 2, *(pytest.param(each, marks=pytest.mark.long) for each in range(3, 10))])
def test_in_random_runs_every_trainer_gets_its_batches_once_in_order(part: int) -> None:
    for seed in range(part, RUNS, 10):
        rng = random.Random(seed)  # noqa: S311 - no secret, a schedule that can be repeated
        world = random_world(rng)
        world.trainers += [random_trainer(world, rng) for _ in range(rng.randint(1, 6))]
        try:
            wander(world, rng, losses=rng.choice((0, 0, 3)))
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
        for trainer in world.trainers:
            assert trainer.taken == trainer.batches_of_all(world.shapes[trainer.stream].batches), f"seed {seed}"


def test_at_the_smallest_memory_one_batch_is_in_production_at_a_time() -> None:
    shape = train(8)

    assert compute_production_slots(shape, SchedulerLimits(smallest([shape]), workers=4)) == 1
