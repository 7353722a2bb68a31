"""The files of the HDF5 benchmark are written as scripts write them, and measured only when they give their samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hdf5
import numpy as np
import pytest
import tables

IMAGES = np.random.default_rng(0).integers(0, 256, (7, 16, 16, 3), dtype=np.uint8)
COLOURS = IMAGES.mean(axis=(1, 2), dtype=np.float32)


def test_a_file_holds_its_first_images_and_is_written_once(tmp_path: Path) -> None:
    store = hdf5.Store("five", tmp_path / "five", 5)
    store.write(IMAGES, COLOURS)
    written = store.path.stat().st_mtime_ns
    store.write(IMAGES, COLOURS)
    assert store.path.stat().st_mtime_ns == written
    with tables.open_file(str(store.path)) as file:
        assert np.array_equal(file.root.images[:], IMAGES[:5])
        assert store.chunk() == file.root.images.chunkshape[0]
    assert np.array_equal(np.load(store.colours), COLOURS[:5])


@pytest.mark.parametrize("fault", [{"missed": 1}, {"repeated": 1}, {"worst": 3.0}], ids=str)
def test_a_loader_that_gives_other_samples_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: dict[str, Any]
) -> None:
    said = {"missed": 0, "repeated": 0, "worst": 0.0}
    monkeypatch.setattr(hdf5, "ask", lambda _, options: {"verified": said} if "--verify" in options else {})
    hdf5.verify("peer", [], tmp_path)
    said |= fault
    with pytest.raises(SystemExit, match="peer does not give the samples"):
        hdf5.verify("peer", [], tmp_path)


def test_a_rate_is_of_the_samples_that_were_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdf5, "ask", lambda *_: {"touch": {"samples": 320, "seconds": 0.5}, "copy": {}})
    assert hdf5.rate("peer", []) == 640
