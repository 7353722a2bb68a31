"""Rows in compressed chunks: each chunk is decompressed once for all its rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from support.hdf5_types import bfloat16, biased, bits
from support.stores_on_disk import PIXELS, OpenedStore, open_hdf5, write_hdf5, write_hdf5_type

from streamd.dataset.hdf5 import library_store
from streamd.dataset.hdf5.library_store import DAMAGED_CHUNK, ChunkCache, Hdf5Store

GZIP = {"compression": "gzip", "shuffle": True}
CHUNK_BYTES = 3 * 6 * 8 * 3


class Reads:
    """A dataset that counts."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.asked: list[tuple[int, int]] = []

    def __getitem__(self, rows: slice) -> Any:
        self.asked.append((rows.start, rows.stop))
        return self._dataset[rows]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[OpenedStore]:
    opened = open_hdf5(write_hdf5(tmp_path / "x.h5", chunks=(3, 6, 8, 3), **GZIP))
    assert isinstance(opened.store, Hdf5Store)
    yield opened
    opened.close()


def counted(opened: OpenedStore) -> list[tuple[int, int]]:
    """What a store reads from now on."""
    assert isinstance(opened.store, Hdf5Store)
    reads = Reads(opened.store._dataset)
    opened.store._dataset = reads
    return reads.asked


def test_a_chunk_is_read_once_for_all_its_rows(opened: OpenedStore) -> None:
    asked = counted(opened)
    opened.gather(19, 0, 7, 6, 8, 7)
    assert asked == [(0, 3), (6, 9), (18, 21)]
    opened.gather(18, 1)
    assert len(asked) == 3


@pytest.fixture
def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is room for two chunks."""
    monkeypatch.setattr(library_store, "CHUNK_CACHE", ChunkCache(2 * CHUNK_BYTES))


@pytest.mark.usefixtures("small_cache")
def test_evicted_chunks_are_read_again(opened: OpenedStore) -> None:
    asked = counted(opened)
    for row in (0, 3, 1, 6, 2, 3):
        assert np.array_equal(opened.gather(row)[0][0], PIXELS[row])
    assert asked == [(0, 3), (3, 6), (6, 9), (3, 6)]


@pytest.mark.usefixtures("small_cache")
def test_a_task_larger_than_the_cache_begins_with_the_cached_chunks(opened: OpenedStore) -> None:
    asked = counted(opened)
    for _ in range(2):
        assert np.array_equal(opened.gather(7, 0, 5)[0], PIXELS[[7, 0, 5]])
    assert asked == [(0, 3), (3, 6), (6, 9), (0, 3)]
    assert isinstance(opened.store, Hdf5Store)
    assert opened.store.decompression_totals[0] == 4


@pytest.mark.usefixtures("small_cache")
def test_streams_share_the_chunk_cache(opened: OpenedStore, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = open_hdf5(write_hdf5(tmp_path / "other" / "x.h5", PIXELS[::-1], chunks=(3, 6, 8, 3), **GZIP))
    asked, asked_other = counted(opened), counted(other)
    opened.gather(0, 3)
    assert np.array_equal(other.gather(0)[0][0], PIXELS[19])
    opened.gather(3, 0)  # of which the other stream has driven out the one used longest ago
    assert (asked, asked_other) == ([(0, 3), (3, 6), (0, 3)], [(0, 3)])
    same = opened.open_again()
    images = np.zeros((1, 6, 8, 3), np.uint8)
    assert same.gather(np.array([4]), {"image": images})[0].all()
    assert isinstance(same, Hdf5Store)
    assert same.decompression_totals[0] == 0
    for closing in (same, other):
        closing.close()


def test_rows_that_were_never_written_hold_the_fill_value(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", PIXELS.shape, np.uint8, chunks=(3, 6, 8, 3), fillvalue=7)[:3] = PIXELS[:3]
    opened = open_hdf5(tmp_path / "x.h5")
    images, held = opened.gather(2, 12)
    assert np.array_equal(images[0], PIXELS[2])
    assert (images[1] == 7).all()
    assert held == [True, True]
    opened.close()


def test_a_damaged_chunk_makes_only_its_own_samples_bad(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "x.h5", chunks=(3, 6, 8, 3), **GZIP)
    with h5py.File(path) as file:
        place = file["x"].id.get_chunk_info_by_coord((3, 0, 0, 0)).byte_offset
    with path.open("r+b") as raw:
        raw.seek(place)
        raw.write(b"\0" * 8)
    opened = open_hdf5(path)
    images, held = opened.gather(2, 3, 6)
    assert held == [True, False, True]
    assert np.array_equal(images[[0, 2]], PIXELS[[2, 6]])
    assert [opened.store.find_permanent_fault(row) for row in (2, 3, 6)] == ["", DAMAGED_CHUNK, ""]
    opened.close()


def test_an_error_of_the_system_makes_no_sample_bad(opened: OpenedStore) -> None:
    class Failing:
        def __getitem__(self, rows: slice) -> Any:
            raise OSError("Can't synchronously read data (file read failed: errno = 5, error message = 'I/O error')")

    assert isinstance(opened.store, Hdf5Store)
    opened.store._dataset = Failing()
    with pytest.raises(OSError, match="errno = 5"):
        opened.gather(0)


OTHERWISE: dict[str, tuple[h5py.h5t.TypeID, Any, dict[str, Any]]] = {
    "the upper bits of two bytes": (bits(h5py.h5t.STD_U16LE, 8, 4), PIXELS.astype(np.uint16), {"range": [0, 255]}),
    "some bits of a byte": (bits(h5py.h5t.STD_U8LE, 7, 1), PIXELS // 2, {}),
    "bfloat16": (bfloat16(), PIXELS.astype(np.float32), {"range": [0, 255]}),
    "another bias of the exponent": (biased(100), PIXELS.astype(np.float32), {"range": [0, 255]}),
}


@pytest.mark.parametrize("chunks", [None, (3, 6, 8, 3), (2, 4, 8, 3)], ids=["one piece", "chunks", "parts of rows"])
@pytest.mark.parametrize("kind", OTHERWISE)
def test_numbers_in_types_that_numpy_lacks_are_converted(tmp_path: Path, kind: str, chunks: Any) -> None:
    stored, images, source = OTHERWISE[kind]
    opened = open_hdf5(write_hdf5_type(tmp_path / "x.h5", stored, images, chunks), **source)
    found, held = opened.gather(19, 0, 7, 6)
    assert np.array_equal(found, images[[19, 0, 7, 6]].astype(np.uint8))
    assert held == [True] * 4
    opened.close()


@pytest.mark.parametrize("chunks", [None, (3,)], ids=["one piece", "chunks"])
def test_a_column_of_images_in_a_table_is_read(tmp_path: Path, chunks: Any) -> None:
    table = np.zeros(20, [("before", "i4"), ("image", "u1", PIXELS.shape[1:]), ("after", "f8")])
    table["image"] = PIXELS
    opened = open_hdf5(write_hdf5(tmp_path / "x.h5", table, chunks=chunks), images="/x/image")
    found, held = opened.gather(19, 0, 7)
    assert np.array_equal(found, PIXELS[[19, 0, 7]])
    assert held == [True] * 3
    opened.close()


def test_an_array_in_one_piece_that_the_library_reads_is_not_read_whole_for_a_row(tmp_path: Path) -> None:
    opened = open_hdf5(write_hdf5_type(tmp_path / "x.h5", bits(h5py.h5t.STD_U8LE, 7, 1), PIXELS // 2))
    parts = counted(opened)
    opened.gather(19, 0)
    assert sorted(parts) == [(0, 1), (19, 20)]
    opened.close()
