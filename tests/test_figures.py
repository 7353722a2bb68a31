"""The figures that README.md and docs/ quote are those that were measured."""

from __future__ import annotations

import json
from pathlib import Path

import compare_results as figures
import pytest


@pytest.fixture
def results(tmp_path: Path) -> Path:
    (tmp_path / "compare.json").write_text(json.dumps({"figures": {"s.of_limit": 0.934}, "rounds": []}))
    (tmp_path / "spine.json").write_text(json.dumps({"medians": {"one": 18_749.6}, "machine": {"commit": "abc"}}))
    return tmp_path


def test_every_marked_figure_is_the_one_that_was_measured() -> None:
    found = [
        each
        for page in figures.list_pages()
        for each in figures.find_figures(page.read_text(encoding="utf-8"), page.relative_to(figures.ROOT).as_posix())
    ]

    assert [said for each in found if (said := figures.check_figure(each))] == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<!-- figure compare:s.of_limit -->0.93 of it", None),
        ("<!-- figure compare:s.of_limit -->0.94 of it", "page:1: compare:s.of_limit says 0.94, measured 0.93"),
        ("<!-- figure compare:s.of_limit -->", "page:1: compare:s.of_limit says nothing, measured 0.93"),
        ("<!-- figure compare:s.of_best -->2.00", "page:1: compare:s.of_best: compare.json has no such figure"),
        ("<!-- figure spine:medians.one -->18,750.", None),
        ("<!-- figure spine:machine.commit -->1", "page:1: spine:machine.commit: spine.json has no such figure"),
        ("<!-- figure nowhere:one -->1", "page:1: nowhere:one: there is no nowhere.json"),
    ],
)
def test_a_figure_that_is_not_measured_is_told_with_its_place(text: str, said: str | None, results: Path) -> None:
    (found,) = figures.find_figures(text, "page")

    assert figures.check_figure(found, results) == said


def test_figures_are_written_in_place_and_nothing_else_changes(results: Path) -> None:
    text = "It has <!-- figure compare:s.of_limit -->0.1, and <!-- figure spine:medians.one -->samples/s.\n"
    anew = figures.rewrite_figures(text, results)

    assert (
        anew == "It has <!-- figure compare:s.of_limit -->0.93, and <!-- figure spine:medians.one -->18,750samples/s.\n"
    )
    assert figures.rewrite_figures(anew, results) == anew


@pytest.mark.parametrize(("value", "text"), [(0.934, "0.93"), (12.34, "12.3"), (345.6, "346"), (18_749.6, "18,750")])
def test_a_figure_is_written_with_three_digits_or_more(value: float, text: str) -> None:
    assert figures.format_figure(value) == text
