"""The reporter of all benchmarks: series, tables, bounds, and a page that is made again from its figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import report
from report import Bound, Machine, Report, Section, Series, Table

MACHINE = Machine("abc", "2026-01-01", 4, "3.11")
BOUND = Bound("Of the limit", 0.8, "at least", 0.8)
SECTION = Section("Rates.", report.tabulate_rounds([("one", (3.0, 1.0, 2.0), ".1f")]), "Part", (BOUND,))
FOUND = Report("Title", "python benchmarks/x.py", MACHINE, "Text.", (SECTION,))


def test_a_row_of_rounds_has_the_median_and_each_round() -> None:
    assert FOUND.find_table("Part").render().splitlines() == [
        "|  | median | round 1 | round 2 | round 3 |",
        "|---|--:|--:|--:|--:|",
        "| one | **2.0** | 3.0 | 1.0 | 2.0 |",
    ]


def test_a_series_shows_the_statistics_that_it_is_asked_for() -> None:
    values = tuple(float(number) for number in range(1, 21))
    shown = Series(values, ".1f", ("median", "lower quarter", "upper quarter", "nine tenths", "worst"))
    assert list(shown.format_cells()) == ["**10.5**", "6.0", "15.0", "19.0", "20.0"]
    assert list(Series((4.0,), ".0f").format_cells()) == ["4"]


@pytest.mark.parametrize(("side", "value", "holds"), [("at least", 0.79, False), ("at most", 0.81, False)])
def test_a_bound_is_held_up_to_its_limit_and_missed_beyond(side: str, value: float, holds: bool) -> None:
    bound = replace(BOUND, side=side)  # type: ignore[arg-type]  # the table holds the two sides
    assert bound.holds
    missed = replace(FOUND, sections=(replace(SECTION, bounds=(bound, replace(bound, value=value))),))
    assert missed.holds is holds
    assert "0.80 is promised: **held**." in missed.render()
    assert f"Of the limit: {value}, {side} 0.80 is promised: **missed**." in missed.render()


def test_the_page_is_made_again_from_the_figures_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "new" / "x.json"
    page = FOUND.save(results)
    assert report.load_report(results) == FOUND
    assert page.read_text() == FOUND.render()
    page.unlink()
    monkeypatch.setattr("sys.argv", ["report.py", str(results)])
    report.main()
    assert page.read_text().startswith("# Title\n\n2026-01-01, commit abc, 4 cores, Python 3.11. Written by")
    assert capsys.readouterr().out == f"{page}\n"


def test_a_benchmark_that_misses_a_bound_ends_with_1(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as kept:
        report.finish(FOUND, tmp_path / "x.json")
    missed = replace(FOUND, sections=(replace(SECTION, bounds=(replace(BOUND, value=0.1),)),))
    with pytest.raises(SystemExit) as ended:
        report.finish(missed, tmp_path / "x.json")
    assert (kept.value.code, ended.value.code) == (0, 1)


def test_a_table_that_is_not_there_is_named() -> None:
    with pytest.raises(LookupError, match="Title: there is no table below 'Other'"):
        replace(FOUND, sections=(replace(SECTION, table=Table((), ()), title=""),)).find_table("Other")


# The soak writes a page of its own kind, from a CSV file.
PAGES = sorted(path for path in report.RESULTS.glob("*.md") if path.stem != "soak")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_each_page_is_that_of_its_figures(page: Path) -> None:
    assert page.read_text() == report.load_report(page.with_suffix(".json")).render()
