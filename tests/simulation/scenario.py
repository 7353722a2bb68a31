"""What a seed stands for: the data, the machine, who trains how, and what goes wrong when."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from stage import Hardware
from support.scheduler_driver import Place, epoch_of

from streamd.core.spec import BadPolicy, UnevenPolicy
from streamd.limits import TASKS_AHEAD_PER_WORKER

FAULTS: Final = (
    "the daemon is killed",
    "the daemon is stopped for a while",
    "the daemon drains",
    "a worker dies",
    "a production fails",
    "the stream is served anew",
    "a sample is spoiled",
    "a trainer is killed",
    "a trainer is stopped for a while",
    "a trainer is stopped for ever",
    "a trainer is slow",
    "a trainer forks",
    "a trainer forks and is killed",
    "a trainer seeks back",
    "a trainer leaves and comes back",
    "a connection breaks",
    "a session is lost to the daemon alone",
    "a partition",
    "a one-way partition",
)
HOSTILE: Final = (
    "a connection breaks unnoticed",
    "frames are dropped",
    "frames are doubled",
    "frames are overtaken",
    "an old frame comes again",
)
_WEIGHTS: Final = {"a production fails": 0.3, "a trainer is killed": 2.0}


@dataclass(frozen=True, slots=True)
class Fault:
    """Happens soon after somebody has come to a place."""

    place: Place
    kind: str


@dataclass(frozen=True, slots=True)
class Leg:
    """A part of a job: `world` ranks go `steps` steps, None to the end."""

    world: int
    steps: int | None


@dataclass(frozen=True, slots=True)
class Scenario:
    """`copies` of a job of world 1 that all take everything, or one job of ranks, in one or more legs."""

    batches: int
    epochs: int
    tasks: int
    policy: BadPolicy
    uneven: UnevenPolicy
    hardware: Hardware
    copies: int
    legs: tuple[Leg, ...]
    credits: tuple[int, ...]
    users: tuple[int, ...]  # whose processes the trainers are; 0 is the daemon's own user
    steps_s: tuple[float, ...]
    hostile: bool
    live: bool  # whether the last of the copies begins where the others are
    may_stop: int  # so many trainers may stop for ever, and there is room for the others whatever they hold
    faults: tuple[Fault, ...]

    def describe(self) -> str:
        machine = self.hardware
        worlds = " -> ".join(str(leg.world) for leg in self.legs)
        alike = f"{self.copies} trainers alike{', the last of them live' if self.live else ''}"
        who = alike if self.copies > 1 else f"a job of {worlds} ranks, {self.uneven}"
        network = "hostile" if self.hostile else "ordinary"
        return (
            f"{self.epochs} epochs of {self.batches} batches, {who}, credit {self.credits} of users {self.users}; "
            f"{machine.slots} slots, {machine.workers} workers, {self.tasks} tasks a batch, "
            f"bad samples: {self.policy}; {network} network"
        )


def draw(rng: random.Random) -> Scenario:
    """A scenario by chance; small ones are likelier, since they run faster and fail in fewer words."""
    batches, epochs = 5 + int(46 * rng.random() ** 4), rng.choices((1, 2, 3), (5, 3, 2))[0]
    trainers, workers, tasks = rng.choices((1, 2, 3, 4), (4, 3, 2, 1))[0], rng.randint(1, 3), rng.randint(1, 2)
    ranks = trainers > 1 and rng.random() < 0.5
    uneven: UnevenPolicy = "pad" if rng.random() < 0.3 else "drop"
    legs = _legs(rng, batches, epochs, trainers, uneven) if ranks else (Leg(1, None),)
    most = max(leg.world for leg in legs) if ranks else trainers
    wishes = tuple(rng.randint(2, 8) for _ in range(most))
    working = -(-workers * TASKS_AHEAD_PER_WORKER // tasks) + 1
    enough, ample = working + max(2, 4 * (most - 1)), working + 2 * sum(wishes)
    slots = rng.choice((3, 2 * most + 1, 2 * most + working, enough, ample))
    hostile = rng.random() < 0.3
    return Scenario(
        batches,
        epochs,
        tasks,
        "mask" if rng.random() < 0.3 else "substitute",
        uneven,
        Hardware(slots, workers, rng.choice((0.002, 0.005, 0.02))),
        1 if ranks else trainers,
        legs,
        wishes,
        tuple(wish % 3 for wish in wishes),  # without the dice: every seed still tells the story that it told before
        tuple(rng.choice((0.001, 0.005, 0.02)) for _ in range(most)),
        hostile,
        not ranks and trainers > 1 and rng.random() < 0.3,
        0 if ranks or slots < enough else trainers - 1 if slots >= ample else min(1, trainers - 1),
        _faults(rng, batches, epochs, hostile=hostile),
    )


def _legs(rng: random.Random, batches: int, epochs: int, world: int, uneven: UnevenPolicy) -> tuple[Leg, ...]:
    """Half of the jobs keep their world; the others have one rank less for a while, as 4 -> 3 -> 4."""
    if rng.random() < 0.5:
        return (Leg(world, None),)
    legs, start = [], (0, 0)
    for size in (world, world - 1):
        ahead = list(steps_of(batches, epochs, start, size, uneven))
        if len(ahead) < 2:
            break
        steps = rng.randint(1, len(ahead) - 1)
        legs.append(Leg(size, steps))
        start = ahead[steps - 1][0], ahead[steps - 1][1] + size
    return (*legs, Leg(world, None))


def _faults(rng: random.Random, batches: int, epochs: int, *, hostile: bool) -> tuple[Fault, ...]:
    """One to three an epoch."""
    kinds = FAULTS + HOSTILE * 2 if hostile else FAULTS
    weights = [_WEIGHTS.get(kind, 1.0) for kind in kinds]
    return tuple(
        Fault((epoch, index), kind)
        for epoch in range(epochs)
        for index in sorted(rng.randrange(batches - 3) for _ in range(rng.randint(1, 3)))
        for kind in rng.choices(kinds, weights)
    )


def steps_of(batches: int, epochs: int, start: Place, world: int, uneven: UnevenPolicy) -> Iterator[Place]:
    """(epoch, base) of every step from `start` on."""
    for epoch in range(start[0], epochs):
        base = start[1] if epoch == start[0] else 0
        yield from ((epoch, index) for index in epoch_of(batches, base, 0, world, uneven))
