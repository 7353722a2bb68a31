"""The page of restarts, from made-up figures, and the parts that one is made of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import restart
import restart_page as page
from report import Machine

from streamd.limits import BACKOFF_MAX_S

QUICK = page.Restart(0.5, 0.25, 0.0, 0.0)
SLOW = page.Restart(0.75, 0.5, 0.125, 0.125)
SIZE = page.Size(10_000, 250_000, (SLOW, QUICK, SLOW))
FOUND = page.Restarts(Machine("abc", "2026-01-01", 4, "3.11"), (SIZE,))


def test_the_parts_are_all_that_there_is_between_the_command_and_the_batch() -> None:
    found = restart.parts(100.0, [100.5, 101.5, 101.625], 103.0)
    assert found == page.Restart(0.5, 1.0, 0.125, 1.375)
    assert found.all_s == 3.0


def test_the_log_tells_when_each_part_ended_and_of_a_line_that_is_not_whole_nothing() -> None:
    moments = {"manifest.reused": 1.0, "daemon.ready": 2.5, "session.began": 3.0}
    lines = [f'{{"time": "1970-01-01T00:00:{at:06.3f}+00:00", "event": "{event}"}}' for event, at in moments.items()]
    assert restart.marks_of("\n".join([*lines, ""])) == [1.0, 2.5, 3.0]
    assert restart.marks_of("\n".join(lines)) == [1.0, 2.5]
    assert restart.marks_of("") == []


@pytest.mark.parametrize(("over_s", "holds"), [(-0.01, True), (0.01, False)])
def test_it_is_held_to_three_seconds_with_a_trainers_longest_pause(over_s: float, holds: bool) -> None:
    late = replace(QUICK, opened_s=3.0 - BACKOFF_MAX_S - QUICK.ready_s + over_s)
    found = replace(FOUND, sizes=(SIZE, replace(SIZE, restarts=(late, late, SLOW))))
    assert found.holds() is holds
    assert ("**held**" in page.render(found)) is holds


def test_the_page_tells_the_median_of_each_part_and_the_worst_of_all(tmp_path: Path) -> None:
    assert "| 10,000 | 0.2 | 0.75 | 0.50 | 0.12 | 0.12 | **1.50** | 1.50 |" in page.render(FOUND)
    page.PAGE.save(FOUND, tmp_path / "restart.json")
    assert page.PAGE.load(tmp_path / "restart.json") == FOUND
