"""The page of figures: what a revision is read from, and whether its targets are reached."""

from __future__ import annotations

from pathlib import Path

import house_page
import pytest
from house_page import Revision, at_most, find_libraries, render_page
from import_graph import read_graph
from measure_code import Measurement


@pytest.fixture
def revision(tmp_path: Path) -> Revision:
    folder = tmp_path / "streamd"
    folder.mkdir()
    (folder / "__init__.py").write_text("import numpy\nconnect = local = numpy\n")
    (folder / "deliveries.py").write_text("class _Parcel: ...\n\ndef place(): ...\n\ndef send_batch(): ...\n")
    code, graph = Measurement(folder), read_graph(folder)
    return Revision("now", "abc1234, 2026-01-02", code, graph, 0, 2, frozenset({"numpy"}))


def test_a_page_has_a_column_a_revision_and_says_which_targets_are_reached(revision: Revision) -> None:
    page = render_page([revision, revision])
    assert "|  | now<br>abc1234, 2026-01-02 | now<br>abc1234, 2026-01-02 |" in page
    assert "| modules | 2 | 2 |" in page
    assert "| record types for one batch | 1 | 1 |" in page
    assert "| at most 25 % of the function names have one word | 50.0% | not reached |" in page
    assert "| at most 4 modules are in the package's root | 2 | reached |" in page
    assert "| `import streamd` brings pyzmq, NumPy and msgspec alone | numpy | reached |" in page


@pytest.mark.parametrize(("field", "count"), [("key: object", 1), ("slot: int", 0)])
def test_an_event_stands_for_a_batch_where_it_holds_the_key_of_one(tmp_path: Path, field: str, count: int) -> None:
    (tmp_path / "events.py").write_text(f"class BatchProduced:\n    {field}\n\nclass Parcel: ...\n")
    revision = Revision("now", "", Measurement(tmp_path), read_graph(tmp_path), 0, 1, frozenset())
    assert revision.batch_records == count


def test_a_target_is_reached_up_to_its_limit(revision: Revision) -> None:
    assert at_most("of modules", lambda at: at.root_modules, 2).is_reached(revision)
    assert not at_most("of modules", lambda at: at.root_modules, 1).is_reached(revision)


@pytest.mark.usefixtures("revision")
def test_libraries_are_those_of_the_checkout_and_not_of_what_is_installed(tmp_path: Path) -> None:
    assert "msgspec" not in find_libraries(tmp_path)
    assert "numpy" in find_libraries(tmp_path)
    assert find_libraries(house_page.ROOT) == {"msgspec", "numpy", "zmq"}


def test_the_command_reads_the_working_tree_and_refuses_what_git_does_not_know(
    tmp_path: Path, revision: Revision, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(house_page, "read_revision", lambda *_: revision)
    house_page.main(["now=.", "--page", str(tmp_path / "house.md")])
    assert (tmp_path / "house.md").read_text() == render_page([revision])
    with (
        pytest.raises(SystemExit, match=r"house_page: git archive .* no-such-revision streamd: "),
        house_page.checked_out("no-such-revision"),
    ):
        pass
