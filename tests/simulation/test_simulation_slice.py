"""A slice of what scripts/simulate runs by the million: every promise holds, whatever goes wrong."""

from __future__ import annotations

import pytest
from figures import Figures
from scenario import FAULTS, HOSTILE
from simulator import Simulation

RUNS = 60


@pytest.mark.parametrize("first", [0, *(pytest.param(each * RUNS, marks=pytest.mark.long) for each in (1, 2, 3))])
def test_every_promise_is_kept(first: int) -> None:
    figures = Figures()
    for seed in range(first, first + RUNS):
        figures.add(Simulation(seed).run())

    assert figures.told() == [], figures.text()
    assert figures.epochs > RUNS
    assert figures.counts["connections"] > 3 * RUNS


@pytest.mark.long
def test_every_kind_of_fault_comes_about_and_every_rule_is_checked() -> None:
    figures = Figures()
    for seed in range(5000, 5150):
        figures.add(Simulation(seed).run())

    assert [kind for kind in (*FAULTS, *HOSTILE) if not figures.counts.get(kind)] == []
    assert len(figures.checked) >= 25
    assert [rule for rule, number in figures.checked.items() if not number] == []
