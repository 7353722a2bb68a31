"""The spine's page, from made-up figures: rates, ratios, and the processor time of a batch where it was measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import report
import run
from batch_cost import BatchCost

ROUND = report.Round(limit=1000.0, one=800.0, four=(400.0, 400.0, 500.0, 600.0), cost=BatchCost(2.0, 0.25))
UPKEEP = report.Upkeep(1 << 20, (2 << 20, 3 << 20), 4 << 20, 256 << 20, 0.01)
SPINE = report.Spine(
    report.Machine("abc", "2026-01-01", 2, "3.11"), (ROUND, replace(ROUND, cost=BatchCost(4.0, 0.35))), UPKEEP
)


def test_the_processor_time_of_a_batch_has_a_row_for_the_daemon_and_one_for_the_trainer(tmp_path: Path) -> None:
    page = report.render(SPINE)
    assert "| processor time a batch, daemon and workers, ms | **3.000** | 2.000 | 4.000 |" in page
    assert "| processor time a batch, the trainer, ms | **0.300** | 0.250 | 0.350 |" in page
    assert report.medians(SPINE)["daemon_ms"] == 3.0
    assert report.medians(SPINE)["trainer_ms"] == pytest.approx(0.3)
    report.PAGE.save(SPINE, tmp_path / "spine.json")
    assert report.PAGE.load(tmp_path / "spine.json") == SPINE


def test_results_from_before_it_was_measured_have_a_page_without_it() -> None:
    spine = replace(SPINE, rounds=(replace(ROUND, cost=None),))
    assert "processor time a batch" not in report.render(spine)
    assert set(report.medians(SPINE)) - set(report.medians(spine)) == {"daemon_ms", "trainer_ms"}
    assert report.PAGE.load(report.PAGE.results).rounds


def test_a_round_is_told_in_one_line() -> None:
    rates = "limit 1,000, one 800, four 450 each"
    assert run.describe_round(ROUND) == f"{rates}; a batch 2.000 ms of daemon and workers, 0.250 ms of the trainer"
    assert run.describe_round(replace(ROUND, cost=None)) == rates
