"""Files are the listed ones until they are not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.served_folder import change_times, serve

from streamd.core.sampler import PAD_ID
from streamd.dataset.arrays import stale_files
from streamd.dataset.arrays.stale_files import ListedFiles
from streamd.errors import ConfigError

IDS = np.array([0, PAD_ID, 5], np.int64)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[ListedFiles]:
    for name in ("a", "b"):
        np.save(tmp_path / f"{name}.npy", np.zeros((4, 8, 8, 3), np.uint8))
    stream = serve(tmp_path, tmp_path / "state", source={"kind": "npy", "path": str(tmp_path)}, labels={}, image={})
    root = os.open(tmp_path, os.O_RDONLY)
    yield ListedFiles(stream.manifest, root)
    os.close(root)
    stream.manifest.close()


def test_samples_are_held_until_one_of_the_files_changes(files: ListedFiles, tmp_path: Path) -> None:
    assert files.sizes == [(tmp_path / name).stat().st_size for name in ("a.npy", "b.npy")]
    assert files.find_gatherable(IDS).tolist() == [True, False, True]
    change_times(tmp_path / "b.npy", 1)
    assert files.find_gatherable(IDS).tolist() == [False, False, False]
    assert not files.are_unchanged()


def test_a_file_is_opened_as_listed_or_not_at_all(files: ListedFiles, tmp_path: Path) -> None:
    descriptor = files.open_file(1)
    assert os.fstat(descriptor).st_ino == (tmp_path / "b.npy").stat().st_ino
    os.close(descriptor)
    change_times(tmp_path / "b.npy", 1)
    with pytest.raises(ConfigError, match=r"'b\.npy' is stale"):
        files.open_file(1)


def test_what_is_written_in_place_is_seen_at_the_next_look(files: ListedFiles, tmp_path: Path) -> None:
    assert files.are_unchanged()
    with (tmp_path / "a.npy").open("r+b") as file:
        file.seek(300)
        file.write(b"\xaa" * 100)
    assert not files.are_unchanged()


def test_looks_at_many_files_take_a_small_part_of_the_time(
    files: ListedFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stale_files, "_FEW_FILES", 1)
    monkeypatch.setattr(stale_files, "_CHECK_SHARE", 1 << 40)
    assert files.are_unchanged()
    (tmp_path / "a.npy").unlink()
    assert files.are_unchanged()


def test_a_file_that_is_gone_is_named_with_its_folder(files: ListedFiles, tmp_path: Path) -> None:
    (tmp_path / "b.npy").unlink()
    with pytest.raises(ConfigError, match=rf"'b\.npy' is not in '{tmp_path}' any more; bring it back, or name in "):
        files.open_file(1)
