"""The page of what a death costs, from made-up figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import independence_page as page
import pytest
from report import Machine

ROUND = page.Round(
    alone=page.Take((100.0, 102.0, 98.0), 5.0),
    fresh=page.Take((99.0, 97.0, 99.0), 5.5),
    in_step=page.Take((100.0, 101.0, 96.0), 5.0),
)
SLOW = page.Take((94.0,) * 3, 5.0)
KILL = page.Kill(startup_s=1.0, pauses_s=(1.2, 1.5, 1.1))
FOUND = page.Independence(Machine("abc", "2026-01-01", 4, "3.11"), 7, (ROUND,) * 3, (KILL,) * 2)


def test_a_rate_is_the_median_trainers_and_a_ratio_is_taken_within_its_round() -> None:
    slow = page.Round(*(page.Take((rate,) * 3, 5.0) for rate in (10.0, 9.0, 5.0)))

    assert (ROUND.of_fresh, ROUND.of_in_step) == (0.99, 1.0)
    assert replace(FOUND, rounds=(ROUND, slow, slow)).median(lambda each: each.of_fresh) == 0.9


def test_the_pause_counts_without_the_daemons_start() -> None:
    assert KILL.beyond_s == pytest.approx((0.2, 0.5, 0.1))
    assert max(FOUND.beyond_s) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "worse",
    [
        {"rounds": (replace(ROUND, fresh=SLOW),)},
        {"rounds": (replace(ROUND, in_step=SLOW),)},
        {"kills": (KILL, page.Kill(1.0, (1.2, 3.1, 1.2)))},
    ],
    ids=["fresh", "in step", "pause"],
)
def test_one_figure_that_misses_makes_it_all_a_no(worse: dict[str, object]) -> None:
    assert FOUND.ok
    assert not replace(FOUND, **worse).ok  # type: ignore[arg-type]  # the table's keys are fields
    assert "**NO**" in page.render(replace(FOUND, **worse))  # type: ignore[arg-type]  # as above


def test_the_page_is_made_anew_from_the_figures(tmp_path: Path) -> None:
    results = tmp_path / "independence.json"
    page.PAGE.save(FOUND, results)
    written = results.with_suffix(".md").read_text()

    assert page.render(page.PAGE.load(results)) == written
    assert "| processor ms a batch, nobody stopped | **5.00** |" in written
    assert "| stopped before its first batch / nobody stopped | **1.100** |" in written
    assert "| pause less start | **0.20** | 0.50 | 0.50 |" in written
