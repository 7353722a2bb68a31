"""The comparison, run whole in small, and what it takes for the same samples."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import compare
import compare_page
import compare_results
import msgspec
import pytest
import run
from compared import FOUND, SEEN


@pytest.mark.parametrize(
    ("seen", "inexact", "same"),
    [
        ({}, "", True),
        ({"missed": 1}, "", False),
        ({"repeated": 1}, "", False),
        ({"missed": 40, "repeated": 40}, "begins anywhere", True),
        ({"worst": 60.0}, "", False),
        ({"typical": 12.0}, "begins anywhere", False),
    ],
)
def test_an_epoch_is_the_set_or_the_loader_says_why_not(seen: dict[str, float], inexact: str, same: bool) -> None:
    assert compare.same_samples(msgspec.structs.replace(SEEN, **seen), inexact) is same


def test_rounds_are_added_to_what_the_same_code_found_on_the_same_terms(tmp_path: Path) -> None:
    results = tmp_path / "compare.json"
    now = msgspec.structs.replace(FOUND, machine=run.machine())
    compare_results.save(now, results)

    assert compare.begun(results, FOUND.terms) == now
    with pytest.raises(SystemExit, match="leave out --more"):
        compare.begun(results, msgspec.structs.replace(FOUND.terms, cores=9))
    compare_results.save(FOUND, results)
    with pytest.raises(SystemExit, match="is of commit abc"):
        compare.begun(results, FOUND.terms)


@pytest.mark.long
def test_the_page_is_the_one_that_its_figures_make(tmp_path: Path) -> None:
    assert compare.DEFAULT_PAGE.exists() == compare_results.DEFAULT_RESULTS.exists()
    if compare.DEFAULT_PAGE.exists():
        found = compare_results.load(compare_results.DEFAULT_RESULTS)
        assert compare.DEFAULT_PAGE.read_text() == compare_page.render(found, compare_page.draw_all(found, tmp_path))


@pytest.mark.bench
@pytest.mark.timeout(240)
def test_one_command_makes_data_verifies_measures_and_writes_the_page(tmp_path: Path) -> None:
    results, page = tmp_path / "compare.json", tmp_path / "docs" / "benchmarks.md"
    places = ["--data", str(tmp_path / "data"), "--results", str(results), "--page", str(page)]
    few = ["--quick", "--peers", "streamd,naive,memmap", "--rounds", "2", "--trainers", "1,2", "--sweep", "1"]
    subprocess.run([sys.executable, str(Path(compare.__file__)), *few, *places], check=True)
    found = compare_results.load(results)

    assert found.failures == {}
    assert set(found.verified) == {"s/streamd", "s/naive", "l/streamd", "l/naive", "decoded/streamd", "decoded/memmap"}
    assert [set(each) for each in found.rounds] == [set(found.rounds[0])] * 2
    assert {"s/limit/1", "s/streamd/2", "s/streamd/1/workers=1", "decoded/memmap/2"} <= set(found.rounds[0])
    assert all(min(taken.touch) > 0 for each in found.rounds for taken in each.values())
    assert all(min(taken.copy) > 0 for each in found.rounds for key, taken in each.items() if "limit" not in key)
    assert {"benchmarks.md", "benchmarks-limit.png", "benchmarks-trainers.png"} <= {
        path.name for path in page.parent.iterdir()
    }
