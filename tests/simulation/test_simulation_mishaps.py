"""Each fault really happens, and has an effect that does not happen without it."""

from __future__ import annotations

from functools import cache

import pytest
from scenario import FAULTS, HOSTILE, Scenario
from scenarios import played, some_scenario
from stage import Hardware

SEEDS = 4

# What shows that a fault mattered: a count, or simulated seconds.
SIGNS = {
    "the daemon is killed": "connections",
    "the daemon is stopped for a while": "seconds",
    "the daemon drains": "connections",
    "a worker dies": "batches begun again",
    "a production fails": "ended by StreamStoppedError",
    "the stream is served anew": "ended by StreamChangedError",
    "a sample is spoiled": "samples condemned",
    "a trainer is killed": "connections",
    "a trainer is stopped for a while": "seconds",
    "a trainer is stopped for ever": "trainers lost",
    "a trainer is slow": "seconds",
    "a trainer forks": "leases retired",
    "a trainer forks and is killed": "connections",
    "a trainer seeks back": "batches dropped after their session",
    "a trainer leaves and comes back": "connections",
    "a connection breaks": "connections",
    "a session is lost to the daemon alone": "connections",
    "a partition": "seconds",
    "a one-way partition": "seconds",
    "a connection breaks unnoticed": "stale frames at the daemon",
    "frames are dropped": "frame dropped",
    "frames are doubled": "frame doubled",
    "frames are overtaken": "frame overtaken",
    "an old frame comes again": "an old frame comes again",
}


@cache
def sums(scenario: Scenario) -> dict[str, float]:
    """What came of some runs, added up."""
    simulations = played(scenario, seeds=SEEDS)
    counts: dict[str, float] = {}
    for simulation in simulations:
        for what, number in simulation.story.counts.items():
            counts[what] = counts.get(what, 0) + number
    counts["seconds"] = sum(simulation.done_s for simulation in simulations)
    counts["trainers lost"] = sum(len(simulation.lost) for simulation in simulations)
    return counts


TIMES = {"a sample is spoiled": 4, "a trainer forks": 2, "a trainer forks and is killed": 2, "a trainer seeks back": 3}


def test_every_fault_has_a_visible_effect_listed() -> None:
    assert set(SIGNS) == {*FAULTS, *HOSTILE}


@pytest.mark.parametrize("kind", [*FAULTS, *HOSTILE])
def test_a_fault_happens_and_has_its_effect(kind: str) -> None:
    hostile = kind in HOSTILE
    quiet = sums(some_scenario(hostile=hostile))
    troubled = sums(some_scenario(*[kind] * TIMES.get(kind, 1), hostile=hostile))

    assert quiet.get(kind, 0) == 0
    assert troubled[kind] > SEEDS // 2
    assert troubled.get(SIGNS[kind], 0) > quiet.get(SIGNS[kind], 0)


@pytest.mark.parametrize("kind", ["frames are dropped", "frames are doubled", "frames are overtaken"])
def test_a_hostile_network_costs_connections_and_nothing_else(kind: str) -> None:
    seeds = 30
    simulations = played(some_scenario(kind, kind, hostile=True), seeds=seeds)

    assert sum(simulation.story.counts["connections"] for simulation in simulations) > 2 * seeds


def test_an_impossible_fault_is_replaced_by_a_possible_one() -> None:
    simulations = played(some_scenario("a trainer is stopped for ever", may_stop=0), seeds=4)

    assert all(simulation.story.counts["a connection breaks"] == 1 for simulation in simulations)


@pytest.mark.parametrize(("users", "slots"), [((0,) * 8, 44), ((1,) * 8, 64), ((0, 0, 1, 1, 1, 2, 2, 3), 64)])
def test_trainers_stopped_for_ever_with_all_their_batches_keep_no_newcomer_out(
    users: tuple[int, ...], slots: int
) -> None:
    scenario = some_scenario(
        *["a trainer is stopped for ever"] * 6,
        *["a trainer is killed", "a trainer leaves and comes back"] * 2,
        copies=8,
        credits=(16, 1024, 16, 4, 1024, 16, 8, 16),
        users=users,
        steps_s=(0.005,) * 8,
        hardware=Hardware(slots=slots, workers=2, decode_s=0.005),
        may_stop=6,
    )

    simulations = played(scenario, seeds=SEEDS)

    assert sum(len(simulation.lost) for simulation in simulations) >= 4 * SEEDS
    assert all(simulation.story.counts["connections"] > 8 for simulation in simulations)
    assert all(simulation.story.counts["ended by RefusedError"] == 0 for simulation in simulations)
