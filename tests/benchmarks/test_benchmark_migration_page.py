"""docs/migration.md is what its command makes of examples/migration/ and the last figures."""

from __future__ import annotations

import migration_page
from migration_page import EXAMPLES, PAGE, SCHEMES, Migration, Pair, Run
from report import Machine

RUNS = (Run(1000.0, 2.0), Run(3000.0, 4.0), Run(2000.0, 3.0))
FASTER = (Run(4000.0, 1.0), Run(6000.0, 1.5), Run(9000.0, 1.0))
FOUND = Migration(Machine("abc", "2026-01-01", 2, "3.11"), 400, {each.name: Pair(RUNS, FASTER) for each in SCHEMES})


def test_every_example_has_its_section() -> None:
    assert {path.name for path in EXAMPLES.iterdir() if path.is_dir()} == {scheme.name for scheme in SCHEMES}


def test_the_page_is_that_of_the_examples_and_the_last_figures() -> None:
    assert PAGE.elsewhere is not None
    assert PAGE.elsewhere.read_text() == migration_page.render(PAGE.load(PAGE.results))


def test_a_scheme_is_faster_by_the_median_of_its_rounds() -> None:
    assert FOUND.pairs["generator"].times == 4.0  # of 4, 2 and 4.5


def test_a_section_shows_both_snippets_and_what_was_measured() -> None:
    page = migration_page.render(FOUND)
    for scheme in SCHEMES:
        for file in ("theirs.py", "ours.py", "config.yaml"):
            assert f"\n{scheme.text(file)}\n```\n" in page
    told = "2,000 samples a second, the first step after 3.0 s; with streamd 6,000, after 1.0 s. That is 4.0 times"
    assert page.count(told) == len(SCHEMES)
    assert (
        "| [A generator in the training script](#a-generator-in-the-training-script) | 2,000 | 6,000 | **4.0** |"
        in page
    )


def test_a_scheme_that_was_not_measured_shows_no_figures() -> None:
    page = migration_page.render(Migration(FOUND.machine, 400, {"generator": FOUND.pairs["generator"]}))
    assert page.count("**Measured**") == 1
    assert page.count("](#") == 1
    assert page.count("\n## ") == len(SCHEMES)
