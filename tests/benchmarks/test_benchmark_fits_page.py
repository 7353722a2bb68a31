"""The page of fits on a stream, from made-up figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import fits_page as page
from report import Machine

JAX = tuple(page.Fit("jax", number, constant=100.0, stream=stream) for number, stream in enumerate((70.0, 80.0, 90.0)))
FOUND = page.Fits(Machine("abc", "2026-01-01", 4, "3.11"), (1000.0,) * 3, JAX)


def test_a_fit_is_held_against_what_is_lower_of_probe_and_constant() -> None:
    assert FOUND.ratios("jax") == [0.7, 0.8, 0.9]
    assert replace(FOUND, probes=(70.0, 80.0, 45.0)).ratios("jax") == [1.0, 1.0, 2.0]


def test_the_median_round_decides() -> None:
    assert FOUND.holds("jax")
    slow = replace(JAX[2], stream=79.0)
    missed = replace(FOUND, fits=(JAX[0], replace(JAX[1], stream=79.0), slow))
    assert not missed.holds("jax")
    assert "**missed by jax**" in page.render(missed)


def test_the_page_has_the_probe_and_three_rows_a_backend() -> None:
    written = page.render(FOUND)
    assert "| `streamd probe` | **1,000** | 1,000 | 1,000 | 1,000 |" in written
    assert "| jax: stream | **80** | 70 | 80 | 90 |" in written
    assert "| jax: of it | **0.80** | 0.70 | 0.80 | 0.90 |" in written
    assert "**held**" in written


def test_figures_survive_the_file(tmp_path: Path) -> None:
    page.PAGE.save(FOUND, tmp_path / "fits.json")
    assert page.PAGE.load(tmp_path / "fits.json") == FOUND
