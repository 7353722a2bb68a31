"""How a store notices that listed files have changed. The contract of stores tests everything else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.served_folder import serve

from streamd.core.sampler import Ids
from streamd.dataset.arrays import store
from streamd.dataset.arrays.store import RowStore
from streamd.dataset.open_store import open_store

IDS: Ids = np.array([0, 7])


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[RowStore]:
    for name in ("a", "b"):
        np.save(tmp_path / f"{name}.npy", np.zeros((4, 8, 8, 3), np.uint8))
    stream = serve(tmp_path, tmp_path / "state", source={"kind": "npy", "path": str(tmp_path)}, labels={}, image={})
    root = os.open(tmp_path, os.O_RDONLY)
    rows = open_store(stream.manifest, root)
    assert rows is not None
    yield rows
    rows.close()
    os.close(root)
    stream.manifest.close()


def test_a_write_in_place_is_noticed_at_the_next_check(opened: RowStore, tmp_path: Path) -> None:
    assert opened.find_gatherable(IDS).all()
    with (tmp_path / "a.npy").open("r+b") as file:
        file.seek(300)
        file.write(b"\xaa" * 100)
    assert not opened.find_gatherable(IDS).any()


def test_checks_of_many_files_are_rare(opened: RowStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_FEW_FILES", 1)
    monkeypatch.setattr(store, "_CHECK_SHARE", 1 << 40)
    assert opened.find_gatherable(IDS).all()
    (tmp_path / "a.npy").unlink()
    assert opened.find_gatherable(IDS).all()
