"""How a store notices that listed files have changed. The contract of stores tests everything else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.served_folder import serve

from streamd.dataset.arrays import store
from streamd.dataset.arrays.store import ListedFiles


@pytest.fixture
def files(tmp_path: Path) -> Iterator[ListedFiles]:
    for name in ("a", "b"):
        np.save(tmp_path / f"{name}.npy", np.zeros((4, 8, 8, 3), np.uint8))
    stream = serve(tmp_path, tmp_path / "state", source={"kind": "npy", "path": str(tmp_path)}, labels={}, image={})
    root = os.open(tmp_path, os.O_RDONLY)
    yield ListedFiles(stream.manifest, root)
    os.close(root)
    stream.manifest.close()


def test_a_write_in_place_is_noticed_at_the_next_check(files: ListedFiles, tmp_path: Path) -> None:
    assert files.are_unchanged()
    with (tmp_path / "a.npy").open("r+b") as file:
        file.seek(300)
        file.write(b"\xaa" * 100)
    assert not files.are_unchanged()


def test_checks_of_many_files_are_rare(files: ListedFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_FEW_FILES", 1)
    monkeypatch.setattr(store, "_CHECK_SHARE", 1 << 40)
    assert files.are_unchanged()
    (tmp_path / "a.npy").unlink()
    assert files.are_unchanged()
