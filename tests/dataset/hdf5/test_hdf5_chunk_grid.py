"""Rows are put together from chunks of any shape; a good order decompresses each compressed chunk once a worker."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import numpy as np
import pytest

from streamd.dataset.hdf5.chunk_grid import CHUNK_SHAPE, LIBRARY_STORE, ChunkGrid, CompressedArray
from streamd.dataset.manifest.types import ArrayFiles, Int64s, StorageFormat
from streamd.limits import CHUNKS_KEPT_BYTES, MIB

SHAPE = (7, 5, 6, 3)
LARGE = CompressedArray(6000, 600, 30 * MIB)
SMALL = CompressedArray(60_000, 20, MIB)
TINY = CompressedArray(60_000, 100, MIB // 16)


@pytest.mark.parametrize("chunk", [(1, 5, 6, 3), (3, 5, 6, 3), (7, 2, 4, 2), (2, 5, 1, 3), (10, 8, 8, 4)], ids=str)
def test_the_pieces_of_all_rows_are_the_array(chunk: tuple[int, ...]) -> None:
    array = np.arange(np.prod(SHAPE)).reshape(SHAPE)
    grid = ChunkGrid(SHAPE, chunk)
    chunks = np.full((grid.chunk_count, *chunk), -1)
    for first in product(*(range(0, size, side) for size, side in zip(SHAPE, chunk, strict=True))):
        part = array[tuple(slice(start, start + side) for start, side in zip(first, chunk, strict=True))]
        chunks[grid.compute_chunk_number(first)][tuple(map(slice, part.shape))] = part
    for row, whole in enumerate(array):
        found = np.full(SHAPE[1:], -1)
        number, inner = divmod(row, grid.chunk_rows)
        for place, piece in enumerate(grid.row_pieces):
            found[piece.in_row] = chunks[number * len(grid.row_pieces) + place, inner][piece.in_chunk]
        assert np.array_equal(found, whole)
    assert grid.has_whole_rows == (len(grid.row_pieces) == 1 and chunk[1:] == SHAPE[1:])


def listed(store: str, *chunk: int, dtype: str = "|u1") -> CompressedArray | None:
    columns: Mapping[str, Int64s] = {CHUNK_SHAPE: np.array(chunk)}
    return CompressedArray.from_manifest(
        ArrayFiles((4, 5, 3), (0, 90), (0,), StorageFormat(store, "/x", dtype)), columns.__getitem__
    )


def test_the_size_of_a_chunk_is_its_decompressed_size() -> None:
    assert listed(LIBRARY_STORE, 7, 4, 5, 3) == CompressedArray(90, 7, 7 * 60)
    # What lies beside it is read as well.
    assert listed(LIBRARY_STORE, 7, 2, 5, 3, dtype="<f4") == CompressedArray(90, 7, 7 * 60 * 4)


def test_uncompressed_arrays_and_chunks_of_one_row_have_no_decompression_cost() -> None:
    assert listed("chunks", 7, 4, 5, 3) is None
    assert listed(LIBRARY_STORE, 1, 4, 5, 3) is None
    assert CompressedArray.from_manifest(None, lambda name: np.array([len(name)])) is None


@pytest.mark.parametrize(
    ("packed", "chunk", "buffer"), [(LARGE, 600, 4), (SMALL, 160, 16), (TINY, 3200, 19)], ids=["large", "small", "tiny"]
)
def test_the_shuffle_buffer_fits_the_chunk_cache_of_a_worker(packed: CompressedArray, chunk: int, buffer: int) -> None:
    rows = np.arange(packed.rows)
    assert (packed.compute_shuffle_chunk_samples(packed.rows), packed.compute_shuffle_buffer_chunks(rows, chunk)) == (
        chunk,
        buffer,
    )
    assert chunk * buffer // packed.chunk_rows * packed.chunk_bytes <= CHUNKS_KEPT_BYTES


def test_a_part_of_a_split_has_fewer_samples_in_each_chunk() -> None:
    rows = np.flatnonzero(np.arange(6000) % 5)
    assert LARGE.compute_shuffle_chunk_samples(rows.size) == 480
    assert LARGE.compute_shuffle_buffer_chunks(rows, 480) == 4
    assert LARGE.compute_shuffle_buffer_chunks(rows + 300, 480) == 2
    assert LARGE.compute_shuffle_buffer_chunks(rows, 1000) == 2


def test_a_buffer_has_at_least_two_chunks() -> None:
    huge = CompressedArray(100, 50, 250 * MIB)
    assert huge.cacheable_chunk_count == 1
    assert huge.compute_shuffle_buffer_chunks(np.arange(100), huge.compute_shuffle_chunk_samples(100)) == 2
    assert huge.compute_shuffle_chunk_samples(1) == 1


def test_an_array_that_a_worker_keeps_whole_is_one_buffer_of_few_chunks() -> None:
    few = CompressedArray(300, 20, MIB)
    assert (
        few.is_cacheable_whole,
        few.compute_shuffle_chunk_samples(300),
        few.compute_shuffle_buffer_chunks(np.arange(300), 160),
    ) == (
        True,
        160,
        2,
    )
    assert CompressedArray(100, 60, 1).compute_shuffle_chunk_samples(100) == 100
    assert not LARGE.is_cacheable_whole
