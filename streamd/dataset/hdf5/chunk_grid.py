"""Divides an HDF5 array into chunks, locates parts of rows in them, computes what compressed chunks cost. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import ceil, prod
from typing import Final

import numpy as np

from streamd.dataset.manifest.types import ArrayFiles, Int64s
from streamd.limits import CHUNKS_KEPT_BYTES

# Columns of the manifest: the offset of each chunk in its file, in bytes and in the order of the grid; a chunk's shape.
CHUNK_OFFSETS: Final = "chunk_offsets"
CHUNK_SHAPE: Final = "chunk_shape"

LIBRARY_STORE: Final = "hdf5"  # the store that reads through h5py, for rows that cannot be copied from the file

_LEAST_BUFFER: Final = 2  # chunks: rows of one chunk alone are hardly mixed
_USUAL_BUFFER: Final = 16  # chunks, of _USUAL_CHUNK samples each, as for arrays that are not compressed
_USUAL_CHUNK: Final = 3200

Slices = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class RowPiece:
    """A part of each row: its place in the row, and its place in the part of that row that a chunk holds."""

    in_row: Slices
    in_chunk: Slices


@dataclass(frozen=True)
class ChunkGrid:
    """An array of `shape`, (n, ...), divided into chunks of the shape `chunk_shape`, (rows, ...)."""

    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]

    @property
    def chunk_rows(self) -> int:
        """The number of rows that a chunk holds, or holds parts of."""
        return self.chunk_shape[0]

    @cached_property
    def grid_shape(self) -> tuple[int, ...]:
        """The number of chunks along each dimension."""
        return tuple(ceil(size / side) for size, side in zip(self.shape, self.chunk_shape, strict=True))

    @property
    def chunk_count(self) -> int:
        return prod(self.grid_shape)

    @cached_property
    def row_pieces(self) -> tuple[RowPiece, ...]:
        """The parts of a row, in the order of the chunks that hold them."""
        # Chunks at the edges reach beyond the array, so a part may be smaller than its chunk.
        sizes, sides = self.shape[1:], self.chunk_shape[1:]
        starts = product(*(range(0, size, side) for size, side in zip(sizes, sides, strict=True)))
        pieces: list[RowPiece] = []
        for start in starts:
            spans = [(first, min(side, size - first)) for first, side, size in zip(start, sides, sizes, strict=True)]
            in_row = tuple(slice(first, first + length) for first, length in spans)
            pieces.append(RowPiece(in_row, tuple(slice(0, length) for _, length in spans)))
        return tuple(pieces)

    @property
    def has_whole_rows(self) -> bool:
        """Whether each row lies in one chunk, in one piece."""
        return self.chunk_shape[1:] == self.shape[1:]

    def compute_chunk_number(self, first: Sequence[int]) -> int:
        """Returns the number of the chunk whose first element has these coordinates."""
        number = 0
        for place, side, count in zip(first, self.chunk_shape, self.grid_shape, strict=True):
            number = number * count + place // side
        return number


@dataclass(frozen=True, slots=True)
class CompressedArray:
    """An array of `rows` in compressed chunks of `chunk_rows` rows each, always several.

    `chunk_bytes` is the size of a chunk when decompressed.

    One row costs its whole chunk, and a worker keeps few chunks. So the order of an epoch decides how often each chunk
    is decompressed: once a worker, where a buffer of the shuffle spans no more chunks than a worker keeps; up to once a
    row, where it spans many.
    """

    rows: int
    chunk_rows: int
    chunk_bytes: int

    @staticmethod
    def from_manifest(arrays: ArrayFiles | None, extra_column: Callable[[str], Int64s]) -> CompressedArray | None:
        """Returns the array that a manifest lists; None where rows cost the same in any order.

        That is where nothing is compressed, or each row by itself. `extra_column` returns an extra column of the
        manifest.
        """
        stored = None if arrays is None else arrays.stored
        if arrays is None or stored is None or stored.store != LIBRARY_STORE:
            return None
        rows, chunk_rows = arrays.starts[-1], int(extra_column(CHUNK_SHAPE)[0])
        row_bytes = prod(arrays.shape) * np.dtype(stored.dtype).itemsize
        return CompressedArray(rows, chunk_rows, chunk_rows * row_bytes) if chunk_rows > 1 else None

    @property
    def cacheable_chunk_count(self) -> int:
        """The number of chunks that a worker keeps."""
        return max(1, CHUNKS_KEPT_BYTES // self.chunk_bytes)

    @property
    def is_cacheable_whole(self) -> bool:
        """Whether a worker keeps all chunks, so that each is decompressed once in any order."""
        return self.cacheable_chunk_count * self.chunk_rows >= self.rows

    def compute_shuffle_chunk_samples(self, samples: int) -> int:
        """Returns the size of a shuffle's chunk, in samples, where so many of the rows are `samples`.

        It holds the samples of one chunk of the array, or of several where these are small, so that a disk reads longer
        pieces.
        """
        several = max(1, min(self.cacheable_chunk_count // _USUAL_BUFFER, _USUAL_CHUNK // self.chunk_rows))
        return max(1, min(self.rows, several * self.chunk_rows) * samples // self.rows)

    def compute_shuffle_buffer_chunks(self, rows: Int64s, chunk: int) -> int:
        """Returns how many chunks of `chunk` samples a shuffle's buffer has, so that a worker can keep all it spans.

        `rows` are those of the samples, rising, (n,). The buffer has at least two chunks.
        """
        # Where only some rows are samples, a shuffle's chunk may span more chunks of the array. What counts is how many
        # it spans on average.
        numbers = rows // self.chunk_rows
        lasts = numbers[np.minimum(np.arange(chunk - 1, rows.size + chunk - 1, chunk), rows.size - 1)]
        touched = (lasts - numbers[::chunk] + 1).mean()
        return max(_LEAST_BUFFER, min(int(self.cacheable_chunk_count / touched), ceil(rows.size / chunk)))
