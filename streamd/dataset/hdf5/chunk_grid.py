"""How HDF5 cuts an array into chunks, and where the parts of a row are in them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import ceil, prod
from typing import Final

# Columns of the manifest: where each chunk begins in its file, in bytes and in the order of the grid; a chunk's shape.
CHUNK_OFFSETS: Final = "chunk_offsets"
CHUNK_SHAPE: Final = "chunk_shape"

Slices = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of each row: where in the row it lies, and where in the chunk's part of that row."""

    in_row: Slices
    in_chunk: Slices


@dataclass(frozen=True)
class Grid:
    """An array of `shape`, (n, ...), cut into chunks of the shape `chunk`, (rows, ...)."""

    shape: tuple[int, ...]
    chunk: tuple[int, ...]

    @property
    def chunk_rows(self) -> int:
        """Rows of which parts lie in one chunk."""
        return self.chunk[0]

    @cached_property
    def sides(self) -> tuple[int, ...]:
        """The number of chunks along each dimension."""
        return tuple(map(_parts, self.shape, self.chunk))

    @property
    def chunks(self) -> int:
        return prod(self.sides)

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """The parts of a row, in the order of the chunks that they lie in."""
        sizes, sides = self.shape[1:], self.chunk[1:]
        starts = product(*(range(0, size, side) for size, side in zip(sizes, sides, strict=True)))
        return tuple(_piece(start, sizes, sides) for start in starts)

    @property
    def has_whole_rows(self) -> bool:
        """Whether rows lie in one piece."""
        return self.chunk[1:] == self.shape[1:]

    def number(self, first: Sequence[int]) -> int:
        """Of the chunk whose first element has these coordinates."""
        number = 0
        for place, side, count in zip(first, self.chunk, self.sides, strict=True):
            number = number * count + place // side
        return number


def _parts(size: int, side: int) -> int:
    return ceil(size / side)


def _piece(start: Sequence[int], sizes: Sequence[int], sides: Sequence[int]) -> Piece:
    stops = [min(first + side, size) for first, side, size in zip(start, sides, sizes, strict=True)]
    in_row = tuple(slice(first, stop) for first, stop in zip(start, stops, strict=True))
    return Piece(in_row, tuple(slice(0, stop - first) for first, stop in zip(start, stops, strict=True)))
