"""The page of the last step into a framework, from made-up figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import frameworks_page as page
import pytest
from report import Machine

CLIENT = page.Client(batch=32, rate=10_000.0, loop_us=50.0, io_us=30.0, zmq_us=16.0)
WAYS = (page.Way("TensorFlow: copied", (100.0, 300.0, 200.0)), page.Way("TensorFlow: ours", (9e6, 8e6, 7e6)))
FOUND = page.Frameworks(Machine("abc", "2026-01-01", 4, "3.11"), WAYS, (CLIENT,) * 3)


def test_what_a_client_costs_is_told_for_a_pace_and_not_for_a_batch() -> None:
    assert CLIENT.total_us == 96
    assert CLIENT.of_core == pytest.approx(0.03)
    assert replace(CLIENT, batch=64).of_core == pytest.approx(0.015)


def test_the_bound_is_held_by_the_median_round() -> None:
    dear = replace(CLIENT, loop_us=51.0)
    assert FOUND.holds()
    assert replace(FOUND, clients=(CLIENT, CLIENT, dear)).holds()
    assert not replace(FOUND, clients=(CLIENT, dear, dear)).holds()
    assert "**missed**" in page.render(replace(FOUND, clients=(dear,) * 3))


def test_the_page_has_a_row_for_each_way_and_each_part_of_the_cost() -> None:
    written = page.render(FOUND)
    assert "| TensorFlow: copied | **200** | 100 | 300 | 200 |" in written
    assert "| ZeroMQ's thread, µs a batch | **16** | 16 | 16 | 16 |" in written
    assert "| of a core at 10,000 samples/s, % | **3.0** | 3.0 | 3.0 | 3.0 |" in written


def test_figures_survive_the_file_and_the_page_lies_beside_it(tmp_path: Path) -> None:
    page.PAGE.save(FOUND, tmp_path / "frameworks.json")
    assert page.PAGE.load(tmp_path / "frameworks.json") == FOUND
    assert (tmp_path / "frameworks.md").read_text() == page.render(FOUND)
