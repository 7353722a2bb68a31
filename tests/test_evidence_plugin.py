"""The pages of faults and attacks: from the real outcomes, whole, and never better than they are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from evidence_plugin import FAULT_PAGE, PAGES, ROOT, EvidencePage, Fault, page_of
from fault_rows import ROWS, WHY_NOT

TESTS: Final = """
import pytest

@pytest.mark.fault("4", "killed | often", departs="no systemd")
@pytest.mark.fault("5", "killed with all others")
def test_passes(record_property):
    record_property("saw", "three kills")

@pytest.mark.fault("19", "replayed")
def test_fails():
    assert False

@pytest.fixture
def broken():
    raise RuntimeError

@pytest.mark.fault("40", "never got there")
def test_cannot_begin(broken): pass

def test_of_no_row(): pass
"""
RUN: Final = r"\d+\.\d \| 77 \| \w[^|]*"  # seconds, seed, commit


pytestmark = pytest.mark.long


@pytest.fixture(scope="module", params=["0", "2"], ids=["alone", "side by side"])
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of TESTS, run in one process and in several."""
    place = tmp_path_factory.mktemp("d")
    (place / "test_faults.py").write_text(TESTS)
    (place / "pytest.ini").write_text("[pytest]\nmarkers =\n    fault: a row\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), "PYTEST_ADDOPTS": "", "FAULTS_SEED": "77"}
    command = [sys.executable, "-m", "pytest", "-p", "evidence_plugin", "--fault-report", str(place / "page.md")]
    command += ["-p", "no:cacheprovider", "--numprocesses", request.param, str(place)]
    subprocess.run(command, cwd=place, env=environment, capture_output=True, check=False)
    return (place / "page.md").read_text()


def lines_of(page: str, row: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith(f"| {row} |")]


def test_each_row_that_a_test_is_marked_with_tells_what_was_done_seen_and_left_out(page: str) -> None:
    (killed,) = lines_of(page, "4")
    assert re.search(rf"\| killed \\\| often \| passed \| {RUN} \| three kills \| no systemd \|$", killed)
    (together,) = lines_of(page, "5")
    assert re.search(rf"\| killed with all others \| passed \| {RUN} \| three kills \|  \|$", together)


def test_a_failed_test_and_one_that_could_not_begin_are_failures(page: str) -> None:
    assert ["| failed |" in line for row in ("19", "40") for line in lines_of(page, row)] == [True, True]
    assert "2 of 4 passed, " in page


def test_a_row_without_a_test_is_there_as_not_run_and_says_why(page: str) -> None:
    assert {row: len(lines_of(page, row)) for row in ROWS} == dict.fromkeys(ROWS, 1)
    assert lines_of(page, "13") == [f"| 13 | {ROWS['13']} |  | not run |  |  |  |  | {WHY_NOT['13']} |"]
    assert lines_of(page, "9") == [f"| 9 | {ROWS['9']} |  | not run |  |  |  |  | no test was among those that ran |"]


def test_a_row_that_several_tests_provoke_has_a_line_for_each() -> None:
    faults = [Fault("43", what, "", "passed", 1.0, "") for what in ("ended", "reloaded")]
    told = [line.split(" | ")[2] for line in lines_of(page_of(FAULT_PAGE, faults, seed="0", commit="c"), "43")]
    assert told == ["ended", "reloaded"]


def test_tests_that_did_the_same_are_one_line_that_fails_with_any_of_them() -> None:
    faults = [Fault("29", "turned", "", outcome, 1.5, "") for outcome in ("passed", "failed", "passed")]
    (line,) = lines_of(page_of(FAULT_PAGE, faults, seed="0", commit="c"), "29")
    assert "| turned | failed | 4.5 |" in line


def test_a_run_of_some_tests_keeps_what_the_page_says_of_the_others() -> None:
    faults = [Fault(row, f"{row} | done", "", "failed", 1.0, "") for row in ("4", "5", "29")]
    before = page_of(FAULT_PAGE, faults, seed="1", commit="old")
    again = [Fault("5", "5 | done", "", "passed", 2.0, "")]
    after = page_of(FAULT_PAGE, again, seed="2", commit="new", earlier=before)
    assert [lines_of(after, row) == lines_of(before, row) for row in ROWS] == [row != "5" for row in ROWS]
    assert "| passed | 2.0 | 2 | new |" in lines_of(after, "5")[0]
    assert "1 of 3 passed, " in after


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.mark))
def test_every_mark_names_a_row_of_the_table(page: EvidencePage) -> None:
    marks = {
        row
        for path in (ROOT / "tests").rglob("test_*.py")
        if path != Path(__file__)
        for row in re.findall(rf"mark\.{page.mark}\(\s*\"([^\"]+)\"", path.read_text(encoding="utf-8"))
    }
    assert marks
    assert marks - set(page.rows) == set()
    assert marks & set(page.why_not) == set()


def test_a_run_of_chosen_tests_keeps_the_lines_of_others_but_of_none_that_is_there_no_more(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    fault: a row\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), "PYTEST_ADDOPTS": ""}
    command = [sys.executable, "-m", "pytest", "-p", "evidence_plugin", "--fault-report", str(tmp_path / "page.md")]
    for tests, options in ((TESTS, []), (TESTS.replace("killed with all others", "stopped"), ["-k", "test_fails"])):
        (tmp_path / "test_faults.py").write_text(tests)
        done = [*command, "-p", "no:cacheprovider", *options, str(tmp_path)]
        subprocess.run(done, cwd=tmp_path, env=environment, capture_output=True, check=False)
    page = (tmp_path / "page.md").read_text()
    assert "killed \\| often" in page
    assert "killed with all others" not in page
    assert lines_of(page, "19")[0].count("| failed |") == 1
