"""What the migration page shows is what runs: every snippet sees each of its images once an epoch."""

from __future__ import annotations

from pathlib import Path

import migration
import migration_data
import pytest
from migration_page import SCHEMES, Scheme
from migration_run import EPOCHS, Outcome, run
from support.daemon_process import write_images

pytestmark = [
    pytest.mark.train,
    pytest.mark.timeout(240),  # the snippets with torch may have to install it first
    pytest.mark.filterwarnings("ignore:.shuffle=True. was passed"),  # as people's own scripts get it
    pytest.mark.filterwarnings("ignore:Your input ran out of data"),  # tf.data learns its length in the first epoch
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("migration")
    write_images(home / "all", dict.fromkeys("abcdefghij", 4), size=(128, 128))
    migration_data.make(home / "all", home / "data", 40)
    return home / "data"


def seen(scheme: Scheme, side: str, folder: Path) -> Outcome:
    if scheme.kind == "torch":
        return migration.run_snippet(scheme, side, folder, migration.environment(folder))
    return run(scheme.folder / f"{side}.py", folder, scheme.kind, migration_data.truths(folder)[scheme.kind].images)


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_a_snippet_and_streamd_beside_it_see_the_same(
    scheme: Scheme, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = migration_data.truths(folder)[scheme.kind]
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
