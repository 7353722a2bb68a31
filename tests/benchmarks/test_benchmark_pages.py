"""Figures and their page are written together, read again, and the page written anew by a command."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from pages import Page, line, median_head, median_row


@dataclass(frozen=True)
class Figures:
    rates: tuple[float, ...]


def page(results: Path) -> Page[Figures]:
    return Page(Figures, lambda found: f"rates {found.rates}\n", by="run.py", results=results)


def test_figures_come_back_without_what_was_written_for_others(tmp_path: Path) -> None:
    results = tmp_path / "new" / "r.json"
    found = Figures((1.5, 2.0))
    page(results).save(found, results, medians={"rate": 1.75})
    assert json.loads(results.read_text()) == {"rates": [1.5, 2.0], "medians": {"rate": 1.75}}
    assert page(results).load(results) == found
    assert results.with_suffix(".md").read_text() == "rates (1.5, 2.0)\n"


def test_the_command_writes_the_page_of_the_file_that_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = tmp_path / "given.json"
    given.write_text('{"rates": [3.0]}')
    monkeypatch.setattr(sys, "argv", ["r_page.py", str(given)])
    page(tmp_path / "r.json").rewrite()
    assert (tmp_path / "given.md").read_text() == "rates (3.0,)\n"
    assert capsys.readouterr().out == f"{tmp_path / 'given.md'}\n"


def test_without_figures_the_command_says_what_finds_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["r_page.py"])
    with pytest.raises(SystemExit, match=r"r_page: no .*r\.json: run  python benchmarks/run\.py  first"):
        page(tmp_path / "r.json").rewrite()


def test_rows_have_as_many_cells_as_their_head() -> None:
    head, rule = median_head(3)
    row = median_row("rate", [3.0, 1.0, 2.0], ".1f")
    assert row == line(["rate", "**2.0**", "3.0", "1.0", "2.0"])
    assert head.count("|") == rule.count("|") == row.count("|")
