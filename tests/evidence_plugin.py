"""A pytest plugin: writes docs/evidence/faults.md and abuse.md from what the tests of faults and of attacks did.

A row is a line of a table; tests say which they provoke by the mark `fault(row, what, departs="")`, or `abuse`, and
what they saw by `record_property("saw", sentence)`. A page is written when all tests have run, whatever came of them.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import abuse_rows
import fault_rows
import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
_DEPARTS: Final = "departs from the row"


@dataclass(frozen=True, slots=True)
class EvidencePage:
    """A page: the mark of its tests, a word for one of its rows, its head, its rows, and why some have no test."""

    mark: str
    word: str
    title: str
    about: str
    rows: Mapping[str, str]
    why_not: Mapping[str, str]


FAULT_PAGE: Final = EvidencePage(
    "fault", "fault", "What was done to it, and what came of it", fault_rows.ABOUT, fault_rows.ROWS, fault_rows.WHY_NOT
)
ABUSE_PAGE: Final = EvidencePage(
    "abuse", "attack", "What another user did to it", abuse_rows.ABOUT, abuse_rows.ROWS, abuse_rows.WHY_NOT
)
PAGES: Final = (FAULT_PAGE, ABUSE_PAGE)


@dataclass(frozen=True, slots=True)
class Fault:
    """One test's word on one row; or that of several tests that did the same, with other parameters."""

    row: str
    what: str
    departs: str
    outcome: str
    seconds: float
    saw: str


def pytest_addoption(parser: pytest.Parser) -> None:
    for page in PAGES:
        name = f"--{page.mark}-report"
        parser.addoption(name, type=Path, metavar="PAGE", help=f"write what came of the {page.mark} tests there")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Marks travel with the report, as properties do, to the process that writes the page."""
    report = yield
    for page in PAGES:
        for mark in item.iter_markers(page.mark):
            report.user_properties.append((page.mark, [*mark.args, mark.kwargs.get("departs", "")]))
    return report


class Reporter:
    """Collects the reports, and writes the page after each: a run that is cut short keeps what it has seen.

    A run of tests chosen by `-k` keeps the page's lines of all others that there still are, each with the commit that
    it was seen at.
    """

    def __init__(self, page: EvidencePage, path: Path, *, is_part: bool) -> None:
        self._page, self._path = page, path
        self._faults: list[Fault] = []
        self._earlier = path.read_text() if is_part and path.exists() else ""
        self._there: set[tuple[str, str]] | None = None  # not known where other processes collect the tests
        self._commit = commit()  # before the page itself differs from it

    @pytest.hookimpl(tryfirst=True)  # while those that `-k` leaves out are still among them
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        marks = [mark.args for item in items for mark in item.iter_markers(self._page.mark)]
        self._there = {(row, _cell(what)) for row, what in marks}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.failed:
            self._faults += faults_of(report, self._page.mark)
            self._write_page()

    def pytest_sessionfinish(self) -> None:
        self._write_page()

    def _write_page(self) -> None:
        seed = os.environ.get("FAULTS_SEED", "0")
        kept = [line for at, line in _lines_that_ran(self._earlier).items() if self._there is None or at in self._there]
        page = page_of(self._page, self._faults, seed=seed, commit=self._commit, earlier="\n".join(kept))
        self._path.write_text(page)


def pytest_configure(config: pytest.Config) -> None:
    for page in PAGES:
        path = config.getoption(f"--{page.mark}-report")
        if path is not None and not hasattr(config, "workerinput"):  # a helper process of xdist writes nothing
            is_part = bool(config.getoption("keyword"))
            config.pluginmanager.register(Reporter(page, path, is_part=is_part), f"{page.mark}-reporter")


def faults_of(report: pytest.TestReport, wanted: str) -> Iterable[Fault]:
    """One for each row that the test is marked with, by the mark `wanted`."""
    saw = "; ".join(str(value) for name, value in report.user_properties if name == "saw")
    for name, value in report.user_properties:
        if name == wanted and isinstance(value, list):
            row, what, departs = map(str, value)
            yield Fault(row, what, departs, report.outcome, report.duration, saw)


def together(faults: Iterable[Fault]) -> list[Fault]:
    """One for each row and what was done: what failed once failed."""
    same: dict[tuple[str, str], list[Fault]] = {}
    for fault in faults:
        same.setdefault((fault.row, fault.what), []).append(fault)
    return [
        replace(
            each[0],
            outcome=next((one.outcome for one in each if one.outcome != "passed"), "passed"),
            seconds=sum(one.seconds for one in each),
            saw="; ".join(dict.fromkeys(one.saw for one in each if one.saw)),
        )
        for each in same.values()
    ]


def commit() -> str:
    """The commit that was tested, marked when files differ from it."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],  # noqa: S607 - the git of whoever develops
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout.strip() or "unknown"


def page_of(page: EvidencePage, faults: Iterable[Fault], *, seed: str, commit: str, earlier: str = "") -> str:
    """The page: a line for each thing that was done about a row, and one for each row that nothing was done about.

    Of the page `earlier` it keeps what was done there and not this time.
    """
    ran = _lines_that_ran(earlier)
    ran |= {
        (fault.row, _cell(fault.what)): _line(page.rows[fault.row], fault, seed, commit) for fault in together(faults)
    }
    passed = sum(_split_cells(line)[3] == "passed" for line in ran.values())
    lines = [
        f"# {page.title}",
        "",
        page.about,
        "",
        f"{passed} of {len(ran)} passed, {datetime.now(UTC):%Y-%m-%d}.",
        "",
        _cells("row", page.word, "what was done", "result", "seconds", "seed", "commit", "what was seen", _DEPARTS),
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row, title in page.rows.items():
        of_row = [line for (at, _), line in ran.items() if at == row]
        lines += of_row or [_not_run(row, title, page.why_not)]
    return "\n".join(lines) + "\n"


def _lines_that_ran(text: str) -> dict[tuple[str, str], str]:
    """The lines of a page, by row and what was done, but for its head and those of rows without a test."""
    lines = [(_split_cells(line), line) for line in text.splitlines() if line.startswith("| ")]
    return {(cells[0], cells[2]): line for cells, line in lines if cells[3] in {"passed", "failed", "skipped"}}


def _split_cells(line: str) -> list[str]:
    return line.removeprefix("| ").removesuffix(" |").split(" | ")


def _line(title: str, fault: Fault, seed: str, commit: str) -> str:
    run = (fault.outcome, f"{fault.seconds:.1f}", seed, commit)
    return _cells(fault.row, title, fault.what, *run, fault.saw, fault.departs)


def _not_run(row: str, title: str, why_not: Mapping[str, str]) -> str:
    return _cells(row, title, "", "not run", "", "", "", "", why_not.get(row, "no test was among those that ran"))


def _cells(*cells: str) -> str:
    return "| " + " | ".join(map(_cell, cells)) + " |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
