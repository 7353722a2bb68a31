"""Small scenarios for tests that want one thing to go wrong, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from scenario import Fault, Leg, Scenario
from simulator import Simulation
from stage import Hardware

QUIET: Final = Scenario(
    batches=30,
    epochs=1,
    tasks=1,
    policy="substitute",
    uneven="drop",
    hardware=Hardware(slots=64, workers=2, decode_s=0.005),
    copies=2,
    legs=(Leg(1, None),),
    credits=(4, 4),
    users=(0, 1),
    steps_s=(0.005, 0.005),
    hostile=False,
    live=False,
    may_stop=1,
    faults=(),
)


def some_scenario(*kinds: str, **changes: Any) -> Scenario:
    """Two trainers alike and one epoch, in the middle of which faults of these kinds happen."""
    return replace(QUIET, faults=tuple(Fault((0, 12), kind) for kind in kinds), **changes)


def played(scenario: Scenario, *, seeds: int) -> list[Simulation]:
    """The scenario by so many dice, each played to its good end."""
    simulations = [Simulation(seed, scenario) for seed in range(seeds)]
    outcomes = [simulation.run() for simulation in simulations]
    assert [(outcome.seed, outcome.broken) for outcome in outcomes if outcome.broken] == []
    return simulations
