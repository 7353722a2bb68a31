"""The page of HDF5 files, from made-up figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import hdf5_page as page
from report import Machine

PLAIN = page.File("Not compressed", 20_000, 2, (100.0, 300.0, 200.0), (400.0, 900.0, 500.0))
PACKED = page.File("Compressed", 4_000, 5, (100.0,) * 3, (50.0,) * 3)
FOUND = page.Hdf5(Machine("abc", "2026-01-01", 4, "3.11"), "PyTables 3", (PLAIN, PACKED))


def test_rates_are_compared_within_a_round() -> None:
    assert PLAIN.times == (4.0, 3.0, 2.5)


def test_the_first_file_decides_and_its_median_round() -> None:
    assert FOUND.holds()
    slower = replace(PLAIN, streamd=(400.0, 899.0, 500.0))
    assert not replace(FOUND, files=(slower, PACKED)).holds()
    assert "**missed**" in page.render(replace(FOUND, files=(PACKED, PLAIN)))


def test_the_page_tells_both_rates_of_each_file(tmp_path: Path) -> None:
    written = page.render(FOUND)
    assert "Not compressed: 20,000 images, of which PyTables puts 2 into a chunk:" in written
    assert "| the generator | **200** | 100 | 300 | 200 |" in written
    assert "| times | **0.50** | 0.50 | 0.50 | 0.50 |" in written
    page.PAGE.save(FOUND, tmp_path / "hdf5.json")
    assert page.PAGE.load(tmp_path / "hdf5.json") == FOUND
