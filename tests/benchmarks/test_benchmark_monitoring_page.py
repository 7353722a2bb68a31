"""The page of what it costs to be watched, from made-up figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import monitoring_page as page
import pytest
from report import Machine

LOOK = page.Look(0.002, 0.0035, 0.05, 17_000)
COST = page.Cost(Machine("abc", "2026-01-01", 4, "3.11"), 8, 90_000.0, 0.25, 1.75, LOOK, 20, 0.001, LOOK)


def test_all_of_it_is_a_scrape_the_dashboards_and_their_pictures() -> None:
    assert COST.watched_cpu_s == pytest.approx(0.002 + 0.001 + 0.002)
    assert COST.of_all(COST.watched_cpu_s) == pytest.approx(0.0025)


@pytest.mark.parametrize(("scrape_s", "holds"), [(0.0169, True), (0.0171, False)])
def test_it_is_held_to_a_hundredth_of_what_the_daemon_takes_with_its_workers(scrape_s: float, holds: bool) -> None:
    cost = replace(COST, scrape=replace(LOOK, cpu_s=scrape_s))
    assert cost.holds() is holds
    assert ("**held**" in page.render(cost)) is holds


def test_the_page_tells_each_as_a_part_of_the_daemons_own_and_of_all(tmp_path: Path) -> None:
    assert "| a scrape each second | 17,000 | 3.5 | 2.00 | 0.80% | **0.10%** |" in page.render(COST)
    page.PAGE.save(COST, tmp_path / "monitoring.json")
    assert page.PAGE.load(tmp_path / "monitoring.json") == COST
