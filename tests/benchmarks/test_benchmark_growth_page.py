"""The page of larger sets and more trainers, from made-up figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import growth_page as page
import pytest
from report import Machine

TAKE = page.Take((1000.0, 1100.0, 900.0), daemon_us=10.0, workers_us=120.0, trainer_us=6.0)
TURN = page.Turn(
    page.Start(ready_s=1.0, first_batch_s=1.2),
    TAKE,
    daemon=page.Memory(30_000_000, 0),
    worker=page.Memory(20_000_000, 500_000),
    trainer=page.Memory(40_000_000, 0),
)
SMALL = page.Size(10_000, page.Listing(0.5, 0.4, 100 << 20, 0, 510_000), (TURN,) * 3)
GROWN = replace(TURN, worker=page.Memory(39_800_000, 49_000_000))  # 20 bytes for each of 990,000
LARGE = page.Size(1_000_000, page.Listing(5.0, 5.5, 400 << 20, 2, 49_000_000), (GROWN,) * 3)
FOUND = page.Growth(
    Machine("abc", "2026-01-01", 4, "3.11"),
    20_000,
    (SMALL, LARGE),
    (page.Company(1, (TAKE,)), page.Company(2, (TAKE,))),
)


def turns(**changed: object) -> page.Growth:
    large = replace(LARGE, turns=tuple(replace(turn, **changed) for turn in LARGE.turns))  # type: ignore[arg-type]  # the tables' keys are fields
    return replace(FOUND, sizes=(SMALL, large))


def test_a_process_is_charged_with_what_it_has_beyond_the_smallest_set() -> None:
    assert FOUND.bytes_a_sample(LARGE, lambda turn: turn.worker) == pytest.approx(20)
    assert FOUND.bytes_a_sample(LARGE, lambda turn: turn.daemon) == 0


def test_rates_are_compared_within_a_round() -> None:
    rounds = [replace(TURN, take=replace(TAKE, rates=(rate,))) for rate in (10.0, 20.0, 40.0)]
    halves = [replace(TURN, take=replace(TAKE, rates=(rate,))) for rate in (5.0, 10.0, 40.0)]
    sizes = (replace(SMALL, turns=tuple(rounds)), replace(LARGE, turns=tuple(halves)))
    assert replace(FOUND, sizes=sizes).of_smallest(sizes[1]) == 0.5


@pytest.mark.parametrize(
    ("worse", "said"),
    [
        (turns(worker=page.Memory(20_000_000 + 101 * 990_000, 0)), "1,000,000 samples take 101 bytes each"),
        (turns(trainer=page.Memory(40_000_000 + 101 * 990_000, 0)), "1,000,000 samples take 101 bytes each"),
        (turns(start=page.Start(2.0, 3.1)), "1,000,000 samples start in 3.10 s"),
        (turns(take=replace(TAKE, rates=(880.0,))), "1,000,000 samples run at 0.88"),
        (
            replace(FOUND, sizes=(SMALL, replace(LARGE, listing=replace(LARGE.listing, manifest_bytes=102_000_000)))),
            "1,000,000 samples take 102 bytes each",
        ),
    ],
    ids=["worker", "trainer", "start", "rate", "manifest"],
)
def test_a_figure_that_misses_is_named_on_the_page(worse: page.Growth, said: str) -> None:
    assert FOUND.misses() == []
    assert said in "; ".join(worse.misses())
    assert "**NO**" in page.render(worse)


def test_the_page_is_made_anew_from_the_figures(tmp_path: Path) -> None:
    results = tmp_path / "growth.json"
    page.PAGE.save(FOUND, results)
    written = results.with_suffix(".md").read_text()

    assert page.render(page.PAGE.load(results)) == written
    assert "| 1,000,000 | 49.0 | 0.0 | 20.0 | 0.0 | 49.0 |" in written
    assert "| 1,000,000 | 5.0 | 5.5 | 400 | 2 |" in written
    assert "| 1,000,000 | 1.00 | **1.20** | 1.20 |" in written
    assert "| 2 | 1,000 | **1.00** | 3,000 | 10.0 | 120.0 | 6.0 |" in written
