"""The checks of the core can fail: each of many one-line faults, put into a copy of the package, is found.

By the checks that know nothing of the line: whole simulations, random runs, state machines, and the window's ledger in
all of them. In the everyday run some faults have their turn; `scripts/test --all` looks for all of them, and
`scripts/docs mutants` writes what each check makes of each into docs/evidence/mutants.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from line_faults import FAULTS, PASS_FAULTS, Fault
from mutants_page import PAGE
from mutate import QUICK, WHOLE, copied, hunted, list_failed_tests, places_of

EVERY_DAY: Final = FAULTS[::5]


def named(fault: Fault) -> str:
    return fault.name


@pytest.mark.parametrize("fault", [*FAULTS, *PASS_FAULTS], ids=named)
def test_the_line_that_a_fault_replaces_stands_once_in_the_source(fault: Fault) -> None:
    assert len(places_of(fault)) == 1, f"{fault.file}: {fault.old}"
    assert fault.new != fault.old


def test_every_fault_has_a_name_of_its_own() -> None:
    names = [fault.name for fault in (*FAULTS, *PASS_FAULTS)]

    assert len(set(names)) == len(names)


@pytest.mark.long
@pytest.mark.parametrize("fault", EVERY_DAY, ids=named)
def test_a_fault_of_the_core_is_found_by_checks_that_know_nothing_of_it(fault: Fault, tmp_path: Path) -> None:
    finds = hunted(copied(tmp_path, fault), QUICK)

    assert any(find.what for find in finds), fault


@pytest.mark.mutants
@pytest.mark.timeout(300)
def test_the_checks_find_nothing_in_the_package_as_it_is(tmp_path: Path) -> None:
    finds = hunted(copied(tmp_path, None), WHOLE)

    assert {find.what for find in finds} == {""}
    assert all(find.runs for find in finds)
    tests = " or ".join(f"({fault.tests})" for fault in PASS_FAULTS)
    assert list_failed_tests(tmp_path, tests) == []


@pytest.mark.mutants
@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault not in EVERY_DAY], ids=named)
def test_every_fault_of_the_core_is_found(fault: Fault, tmp_path: Path) -> None:
    finds = hunted(copied(tmp_path, fault), WHOLE)

    assert any(find.what for find in finds), fault


@pytest.mark.mutants
@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", PASS_FAULTS, ids=named)
def test_every_fault_of_a_pass_fails_a_test_of_its_promise(fault: Fault, tmp_path: Path) -> None:
    assert list_failed_tests(copied(tmp_path, fault), fault.tests)


def test_the_page_tells_of_every_fault_and_of_no_other() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ") and "`" in line]

    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == [fault.name for fault in FAULTS]
