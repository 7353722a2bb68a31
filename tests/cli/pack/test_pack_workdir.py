"""The hidden folder: one process's own, and nothing of it is at the pack's place before it is whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamd.cli.pack.workdir import PackWorkdir
from streamd.errors import ConfigError, PackError


def test_the_product_is_put_in_place_whole_and_the_rest_removed(tmp_path: Path) -> None:
    with PackWorkdir(tmp_path / "out") as work:
        work.product_path.mkdir()
        (work.product_path / "part").write_text("x")
        work.journal_path.write_text("{}")
        assert not (tmp_path / "out").exists()
        work.move_product_to_destination()
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["out", "out/part"]


def test_what_is_there_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to("nowhere")
    with pytest.raises(ConfigError, match="is there already"):
        PackWorkdir(tmp_path / "out")


def test_a_place_without_a_name_is_none() -> None:
    with pytest.raises(ConfigError, match="name a folder or file"):
        PackWorkdir(Path("/"))


def test_what_came_there_meanwhile_is_not_replaced_either(tmp_path: Path) -> None:
    with PackWorkdir(tmp_path / "out") as work:
        work.product_path.write_text("ours")
        (tmp_path / "out").write_text("theirs")
        with pytest.raises(ConfigError, match="is there already"):
            work.move_product_to_destination()
    assert (tmp_path / "out").read_text() == "theirs"


def test_a_place_without_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        PackWorkdir(tmp_path / "missing" / "out")


def test_two_packs_of_one_place_do_not_meet(tmp_path: Path) -> None:
    with (
        PackWorkdir(tmp_path / "out"),
        pytest.raises(PackError, match="another streamd pack"),
        PackWorkdir(tmp_path / "out"),
    ):
        pass


def test_a_run_that_begun_nothing_leaves_nothing(tmp_path: Path) -> None:
    with PackWorkdir(tmp_path / "out") as work:
        work.product_path.mkdir()
    assert list(tmp_path.iterdir()) == []


def test_what_the_next_run_goes_on_with_stays_until_it_is_cleared(tmp_path: Path) -> None:
    with PackWorkdir(tmp_path / "out") as work:
        work.product_path.mkdir()
        work.journal_path.write_text("{}")
    with PackWorkdir(tmp_path / "out") as work:
        assert work.product_path.is_dir()
        work.clear_work_folder()
        assert list(work.folder.iterdir()) == []
