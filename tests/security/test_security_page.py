"""SECURITY.md: each of its promises names tests that exist, and the pages that should lead to it do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
PEOPLE: Final = ("An outsider", "A group member", "A supplier of data", "A neighbour on the host", "A supplier of code")


def promises_of(person: str) -> list[list[str]]:
    """The rows of what this person cannot do: the promise, its mechanism, and its tests."""
    section = PAGE.split(f"### {person}\n")[1].split("\n#")[0]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    assert [cell.strip() for cell in rows[0]] == ["cannot", "because", "shown by"]
    return rows[1:]


@pytest.mark.parametrize("person", PEOPLE)
def test_every_promise_has_a_mechanism_and_tests_that_exist(person: str) -> None:
    promises = promises_of(person)

    assert promises
    for cells in promises:
        promise, mechanism, shown = map(str.strip, cells)
        tests = re.findall(r"`(tests/[\w/]+\.py)`", shown)
        assert promise
        assert mechanism
        assert tests, promise
        assert [test for test in tests if not (ROOT / test).is_file()] == []


@pytest.mark.parametrize("person", PEOPLE)
def test_every_person_has_something_that_is_not_promised(person: str) -> None:
    assert "Not promised: " in PAGE.split(f"### {person}\n")[1].split("\n#")[0]


def test_every_bound_on_the_page_is_one_of_limits() -> None:
    limits = (ROOT / "streamd" / "limits.py").read_text(encoding="utf-8")
    bounds = re.findall(r"`([A-Z]+_[A-Z_]+)`", PAGE)

    assert bounds
    assert [each for each in bounds if f"\n{each}: Final" not in limits and each != "HDF5_PLUGIN_PATH"] == []


def test_its_links_lead_somewhere_and_it_names_no_address() -> None:
    for target in re.findall(r"\]\(([^)#]+)", PAGE):
        assert (ROOT / target).is_file(), target
    assert re.findall(r"https?://|[\w.]+@[\w.]+", PAGE) == []


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/operations.md"])
def test_other_pages_lead_to_it(page: str) -> None:
    assert re.search(r"\]\((\.\./)?SECURITY\.md[)#]", (ROOT / page).read_text(encoding="utf-8"))
