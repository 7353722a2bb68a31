"""The soak's page and picture, from made-up rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soak_page as page
from PIL import Image
from report import Machine
from soak_chart import PANELS, points
from soak_rows import Totals
from soak_verdict import Fit, fits
from soaking import ROW, hour

FLAT = Fit("threads of the daemon", "all", 59.0, median=5.0, growth=0.0, allowed=1.0)
GROWN = replace(FLAT, growth=2.0)
GOOD = page.Outcome(
    Machine("abc", "2026-01-01", 4, "3.11"),
    60.0,
    7,
    {"kill -9 of a worker": 3},
    Totals(1000, 10, 5, 8),
    (24, 17),
    (FLAT,),
    (),
)


def test_the_page_says_how_to_do_it_again_and_what_was_done() -> None:
    said = page.render(GOOD)

    assert "`scripts/bench soak --minutes 60 --seed 7`" in said
    assert "| kill -9 of a worker | 3 |" in said
    assert "24, 17 batches on loan" in said
    assert "**as promised**" in said


@pytest.mark.parametrize("worse", [{"fits": (FLAT, GROWN)}, {"problems": ("a trainer hangs",)}])
def test_a_problem_or_a_growing_curve_makes_it_a_no(worse: dict[str, object]) -> None:
    bad = replace(GOOD, **worse)  # type: ignore[arg-type]  # the table's keys are fields

    assert GOOD.ok
    assert not bad.ok
    assert "**NOT AS PROMISED**" in page.render(bad)
    assert ("**GROWS**" in page.render(bad), "- a trainer hangs" in page.render(bad)) == (
        "fits" in worse,
        "problems" in worse,
    )


def test_a_curve_is_cut_where_a_new_daemon_began_and_where_nothing_is_known() -> None:
    rows = [replace(ROW, time_s=60.0 * n, life=1 + n // 3, daemon_threads=None if n == 4 else n) for n in range(7)]

    assert points(lambda row: row.daemon_threads, rows) == [
        [(0.0, 0.0), (1.0, 1.0), (2.0, 2.0)],
        [(3.0, 3.0)],
        [(5.0, 5.0)],
        [(6.0, 6.0)],
    ]
    assert page.restarts(rows) == [3.0, 6.0]


def test_every_panel_of_the_picture_shows_a_curve(tmp_path: Path) -> None:
    rows = hour(every_s=60.0, life_s=1800.0)
    page.save(replace(GOOD, fits=tuple(fits(rows))), rows, tmp_path)
    with Image.open(tmp_path / "soak.png") as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(int)
    height, width = pixels.shape[0] // (len(PANELS) // 2), pixels.shape[1] // 2
    blue = np.abs(pixels - (44, 108, 188)).sum(axis=2) < 60

    shown = [blue[y * height : (y + 1) * height, x * width : (x + 1) * width].any() for y in range(4) for x in range(2)]
    assert shown[:7] == [True] * 7  # the last counts faults, and there were none: its curve lies on the axis
    assert (tmp_path / "soak.md").read_text() == page.render(replace(GOOD, fits=tuple(fits(rows))))
