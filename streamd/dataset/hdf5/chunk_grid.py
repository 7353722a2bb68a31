"""Divides an HDF5 array into chunks, and locates the parts of a row in them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import ceil, prod
from typing import Final

# Columns of the manifest: the offset of each chunk in its file, in bytes and in the order of the grid; a chunk's shape.
CHUNK_OFFSETS: Final = "chunk_offsets"
CHUNK_SHAPE: Final = "chunk_shape"

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
        return tuple(_build_row_piece(start, sizes, sides) for start in starts)

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


def _build_row_piece(start: Sequence[int], sizes: Sequence[int], sides: Sequence[int]) -> RowPiece:
    stops = [min(first + side, size) for first, side, size in zip(start, sides, sizes, strict=True)]
    in_row = tuple(slice(first, stop) for first, stop in zip(start, stops, strict=True))
    return RowPiece(in_row, tuple(slice(0, stop - first) for first, stop in zip(start, stops, strict=True)))
