"""The migration page: it is that of examples/migration and the last figures, and what it shows is what runs."""

from __future__ import annotations

from pathlib import Path

import migration
import pytest
from migration import EXAMPLES, SCHEMES, Migration, Pair, Run, Scheme
from migration_run import EPOCHS, Outcome, run
from report import Machine
from support.daemon_process import write_images


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("migration")
    write_images(home / "all", dict.fromkeys("abcdefghij", 4), size=(128, 128))
    migration.make_forms(home / "all", home / "data", 40)
    return home / "data"


def seen(scheme: Scheme, side: str, folder: Path) -> Outcome:
    if scheme.kind == "torch":
        return migration.run_snippet(scheme, side, folder, migration.environment(folder))
    return run(scheme.folder / f"{side}.py", folder, scheme.kind, migration.truths(folder)[scheme.kind].images)


@pytest.mark.train
@pytest.mark.timeout(240)  # the snippets with torch may have to install it first
@pytest.mark.filterwarnings("ignore:.shuffle=True. was passed")  # as people's own scripts get it
@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # tf.data learns its length in the first epoch
@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_a_snippet_and_streamd_beside_it_see_the_same(
    scheme: Scheme, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = migration.truths(folder)[scheme.kind]
    theirs = seen(scheme, "theirs", folder)
    with migration.beside_a_daemon(scheme, folder) as names:
        monkeypatch.setenv("XDG_RUNTIME_DIR", names["XDG_RUNTIME_DIR"])
        if scheme.kind == "torch":
            ours = migration.run_snippet(scheme, "ours", folder, names)
        else:
            ours = seen(scheme, "ours", folder)
    for outcome in (theirs, ours):
        assert outcome.images == EPOCHS * truth.images
        assert outcome.labels == pytest.approx(EPOCHS * truth.labels, abs=1e-3)
        assert len(outcome.ends_s) == EPOCHS
    # Normalized pixels have a mean near 0, so the bound is also 0.03 of a standard deviation for each image.
    assert ours.levels == pytest.approx(scheme.scale * theirs.levels, rel=0.03, abs=0.03 * ours.images)


RUNS = (Run(1000.0, 2.0), Run(3000.0, 4.0), Run(2000.0, 3.0))
FASTER = (Run(4000.0, 1.0), Run(6000.0, 1.5), Run(9000.0, 1.0))
FOUND = Migration(Machine("abc", "2026-01-01", 2, "3.11"), 400, {each.name: Pair(RUNS, FASTER) for each in SCHEMES})


def test_every_example_has_its_section() -> None:
    assert {path.name for path in EXAMPLES.iterdir() if path.is_dir()} == {scheme.name for scheme in SCHEMES}


def test_the_page_is_that_of_the_examples_and_the_last_figures() -> None:
    assert migration.PAGE.read_text() == migration.render(migration.load(migration.DEFAULT_RESULTS))


def test_a_scheme_is_faster_by_the_median_of_its_rounds() -> None:
    assert FOUND.pairs["generator"].times == 4.0  # of 4, 2 and 4.5


def test_a_section_shows_both_snippets_and_what_was_measured() -> None:
    page = migration.render(FOUND)
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
    page = migration.render(Migration(FOUND.machine, 400, {"generator": FOUND.pairs["generator"]}))
    assert page.count("**Measured**") == 1
    assert page.count("](#") == 1
    assert page.count("\n## ") == len(SCHEMES)
