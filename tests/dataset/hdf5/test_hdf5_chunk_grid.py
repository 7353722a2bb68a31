"""Rows of a chunked array are put together from their pieces, for chunks of any shape."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from streamd.dataset.hdf5.chunk_grid import ChunkGrid

SHAPE = (7, 5, 6, 3)


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
