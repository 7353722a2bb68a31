"""How often an order has chunks decompressed is counted, and is what workers do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from support.served_folder import serve

from streamd.cli.check import summary as counting
from streamd.cli.check.summary import estimate_unpacking
from streamd.core.sampler import compute_batch_ids
from streamd.daemon.streams.served_stream import ServedStream
from streamd.dataset.hdf5 import library_store
from streamd.dataset.hdf5.chunk_cache import ChunkCache
from streamd.dataset.hdf5.library_store import Hdf5Store
from streamd.dataset.open_store import open_store

CHUNK_BYTES = 10 * 4 * 4 * 3
ROWS = 240
CHUNKS = ROWS // 10


@pytest.fixture(autouse=True)
def _room_for_two_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("streamd.cli.check.summary", "streamd.dataset.hdf5.chunk_cost"):
        monkeypatch.setattr(f"{module}.CHUNKS_KEPT_BYTES", 2 * CHUNK_BYTES)
    monkeypatch.setattr(library_store, "CHUNK_CACHE", ChunkCache(2 * CHUNK_BYTES))


def packed(tmp_path: Path, **changes: Any) -> ServedStream:
    """A stream of 24 compressed chunks of 10 rows."""
    path = tmp_path / "x.h5"
    if not path.exists():
        with h5py.File(path, "w") as file:
            file.create_dataset("x", (ROWS, 4, 4, 3), np.uint8, chunks=(10, 4, 4, 3), compression="gzip")[:] = 1
    source = {"kind": "hdf5", "path": str(path), "images": "x"}
    defaults: dict[str, Any] = {"source": source, "image": {}, "labels": {}, "batch_size": 5}
    return serve(tmp_path, tmp_path / "state", **(defaults | changes))


ORDERS = [{}, {"shuffle": "full"}, {"shuffle": "none"}, {"shuffle": {"kind": "chunk", "chunk": 40, "buffer": 3}}]


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_what_is_counted_for_one_worker_is_what_its_store_does(tmp_path: Path, order: dict[str, Any]) -> None:
    stream = packed(tmp_path, **order)
    found = estimate_unpacking(stream, 1)
    root = os.open(tmp_path, os.O_RDONLY)
    store = open_store(stream.manifest, root)
    assert found is not None
    assert isinstance(store, Hdf5Store)
    images = np.empty((5, 4, 4, 3), np.uint8)
    for index in range(stream.spec.batches):
        assert store.gather_rows(compute_batch_ids(stream.order, 0, index, 5), images).all()
    assert round(found.per_sample * ROWS) == store.decompression_totals[0]
    store.close()
    os.close(root)


def test_an_order_that_is_left_open_is_the_fast_one_and_a_full_shuffle_is_not(tmp_path: Path) -> None:
    default, full = estimate_unpacking(packed(tmp_path), 1), estimate_unpacking(packed(tmp_path, shuffle="full"), 1)
    assert default is not None
    assert full is not None
    assert (default.chunk_rows, default.chunk_bytes) == (10, CHUNK_BYTES)
    assert (default.fast_chunk, default.fast_buffer) == (10, 2)
    assert default.per_sample == default.fast_per_sample == full.fast_per_sample == CHUNKS / ROWS
    assert full.per_sample > 5 * full.fast_per_sample


def test_each_worker_decompresses_for_itself_and_a_long_epoch_is_judged_by_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three = estimate_unpacking(packed(tmp_path), 3)
    assert three is not None
    assert 2 * CHUNKS / ROWS < three.per_sample < 3 * CHUNKS / ROWS
    monkeypatch.setattr(counting, "UNPACKING_ROWS", ROWS // 2)
    half = estimate_unpacking(packed(tmp_path), 1)
    assert half is not None
    assert half.per_sample == CHUNKS / ROWS


def test_rows_of_the_last_batch_that_are_no_samples_cost_nothing(tmp_path: Path) -> None:
    assert estimate_unpacking(packed(tmp_path, batch_size=64, drop_remainder="pad"), 1) == estimate_unpacking(
        packed(tmp_path, batch_size=64), 1
    )


def test_images_in_files_have_no_chunks(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((9, 4, 4, 3), np.uint8))
    assert estimate_unpacking(packed(tmp_path, source={"kind": "npy", "path": str(tmp_path / "x.npy")}), 1) is None
