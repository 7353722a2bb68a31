"""The figures that README.md and docs/ quote are those that were measured."""

from __future__ import annotations

import json
from pathlib import Path

import compare_results as figures
import pytest


@pytest.fixture
def results(tmp_path: Path) -> Path:
    (tmp_path / "compare.json").write_text(
        json.dumps({"figures": {"s.of_limit": 0.934, "s.one": 18_749.6}, "rounds": []})
    )
    (tmp_path / "spine.json").write_text(json.dumps({"machine": {"commit": "abc"}}))
    return tmp_path


@pytest.mark.parametrize("page", figures.list_pages(), ids=lambda page: str(page.name))
def test_every_marked_figure_is_the_one_that_was_measured(page: Path) -> None:
    text = page.read_text(encoding="utf-8")

    assert figures.rewrite_figures(text) == text


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        ("compare:s.of_best", "compare:s.of_best: compare.json has no such figure"),
        ("spine:one", "spine:one: spine.json has no such figure"),
        ("nowhere:one", "nowhere:one: there is no nowhere.json"),
    ],
)
def test_a_figure_that_is_not_measured_is_named(mark: str, said: str, results: Path) -> None:
    with pytest.raises(LookupError, match=f"^{said}$"):
        figures.rewrite_figures(f"<!-- figure {mark} -->1", results)


def test_figures_are_written_in_place_and_nothing_else_changes(results: Path) -> None:
    text = "It has <!-- figure compare:s.of_limit -->0.1, and <!-- figure compare:s.one -->samples/s.\n"
    new = figures.rewrite_figures(text, results)

    assert new == "It has <!-- figure compare:s.of_limit -->0.93, and <!-- figure compare:s.one -->18,750samples/s.\n"
    assert figures.rewrite_figures(new, results) == new


@pytest.mark.parametrize(("value", "text"), [(0.934, "0.93"), (12.34, "12.3"), (345.6, "346"), (18_749.6, "18,750")])
def test_a_figure_is_written_with_three_digits_or_more(value: float, text: str) -> None:
    assert figures.format_figure(value) == text
