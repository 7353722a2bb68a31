"""Rows in chunks of an HDF5 file lie in the slot as they were written, and nobody asks HDF5."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.stores_on_disk import PIXELS, OpenedStore, open_hdf5, write_hdf5

from streamd.core.sampler import PAD_ID
from streamd.dataset.hdf5.mapped_store import ChunkStore

IDS = [19, 0, 7, 6, 8, 7]


@pytest.fixture(params=[(3, 6, 8, 3), (1, 6, 8, 3), (1, 4, 8, 3), (2, 4, 3, 2)], ids=str)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenedStore]:
    opened = open_hdf5(write_hdf5(tmp_path / "x.h5", chunks=request.param))
    assert isinstance(opened.store, ChunkStore)
    yield opened
    opened.close()


@pytest.mark.parametrize("chunks", [None, (3, 4, 8, 3)], ids=["one piece", "chunks"])
def test_rows_of_other_numbers_are_converted(tmp_path: Path, chunks: Any) -> None:
    numbers = (PIXELS / 255).astype(">f4")
    numbers[7, 0, 0, 0] = np.nan
    opened = open_hdf5(write_hdf5(tmp_path / "x.h5", numbers, chunks=chunks), range=[0, 1])
    assert isinstance(opened.store, ChunkStore)
    images, held = opened.gather(19, 7, 0)
    assert np.array_equal(images[[0, 2]], PIXELS[[19, 0]])
    assert held == [True, False, True]
    assert (opened.store.find_permanent_fault(7), opened.store.find_permanent_fault(19)) == (
        "a pixel is no number (NaN)",
        "",
    )
    opened.close()


@pytest.mark.parametrize(
    ("images", "served"),
    [(PIXELS.transpose(0, 3, 1, 2), PIXELS), (PIXELS[..., 0], PIXELS[..., :1])],
    ids=["channels first", "grey"],
)
def test_rows_in_another_order_are_put_in_ours(tmp_path: Path, images: Any, served: Any) -> None:
    mode = {"image": {"mode": "L"}} if served.shape[-1] == 1 else {}
    path = write_hdf5(tmp_path / "x.h5", images, chunks=(3, *images.shape[1:]))
    opened = open_hdf5(path, stream=mode)
    assert np.array_equal(opened.gather(*IDS)[0], served[IDS])
    opened.close()


def test_what_is_expected_is_asked_for_where_it_lies(opened: OpenedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    def advise(descriptor: int, offset: int, nbytes: int, _: int) -> None:
        asked.append(os.pread(descriptor, nbytes, offset))

    monkeypatch.setattr(os, "posix_fadvise", advise)
    opened.store.prefetch_rows(np.array([19, PAD_ID, 7], np.int64))
    pieces = len(asked) // 2
    for row, parts in ((19, asked[:pieces]), (7, asked[pieces:])):
        assert sum(sum(part) for part in parts) == int(PIXELS[row].sum())  # zeros lie beyond the edges


def test_a_worker_loads_no_hdf5(tmp_path: Path) -> None:
    opened = open_hdf5(write_hdf5(tmp_path / "x.h5", chunks=(3, 6, 8, 3)))
    names = str(opened.stream.manifest_path), str(opened.stream.manifest.root)
    code = (
        "import os, sys; from pathlib import Path; from streamd.dataset.manifest.manifest import Manifest\n"
        "from streamd.dataset.open_store import open_store\n"
        f"open_store(Manifest.open(Path({names[0]!r})), os.open({names[1]!r}, os.O_RDONLY))\n"
        "sys.exit('h5py' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    opened.close()
