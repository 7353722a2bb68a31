"""A label of texts as a column of cells has them: made into fields of equal width when asked for, some at a time.

As one array, 10⁶ texts of 1 KiB take a gigabyte beside the column that they come from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

RowIndices = npt.NDArray[np.int64]
TextFields = npt.NDArray[np.bytes_]

_BLOCK_BYTES: Final = 1 << 22  # of fields at a time: their rows cost more than the block


class TextColumn:
    """UTF-8 texts of at most `width` bytes, (n,), in `pieces`: arrays of pyarrow's large strings, without gaps.

    `rows` are those of all pieces that it has, ascending; None: all.
    """

    def __init__(self, pieces: Sequence[Any], width: int, rows: RowIndices | None = None) -> None:
        self.dtype = np.dtype(f"S{width}")
        self._pieces = pieces
        self._rows = rows

    @property
    def shape(self) -> tuple[int]:
        return (sum(map(len, self._pieces)) if self._rows is None else int(self._rows.size),)

    @property
    def nbytes(self) -> int:
        """Of all fields."""
        return self.shape[0] * self.dtype.itemsize

    def __getitem__(self, rows: RowIndices) -> TextColumn:
        """The rows at these positions, ascending; no text is copied."""
        own = rows if self._rows is None else self._rows[rows]
        return TextColumn(self._pieces, self.dtype.itemsize, own)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """All fields at once."""
        del copy  # there is none to be shared
        return np.concatenate([np.empty(0, self.dtype), *self.iterate_blocks()]).astype(dtype or self.dtype, copy=False)

    def tolist(self) -> list[Any]:
        """All texts, as arrays give theirs."""
        return [text for block in self.iterate_blocks() for text in block.tolist()]

    def iterate_blocks(self) -> Iterator[TextFields]:
        """The fields, (rows,) each, one behind the other."""
        step = max(1, _BLOCK_BYTES // self.dtype.itemsize)
        for texts in self._iterate_slices(step):
            yield np.array(texts.cast("large_binary").to_pylist(), self.dtype)

    def _iterate_slices(self, step: int) -> Iterator[Any]:
        """The texts, at most `step` of them each."""
        if self._rows is None:
            for piece in self._pieces:
                yield from (piece.slice(start, step) for start in range(0, len(piece), step))
        else:
            for piece, rows in split_rows_by_piece(self._pieces, self._rows):
                yield from (piece.take(rows[start : start + step]) for start in range(0, len(rows), step))


def split_rows_by_piece(pieces: Sequence[Any], rows: RowIndices) -> Iterator[tuple[Any, RowIndices]]:
    """Each of the pieces of a column, and those of `rows`, ascending, that lie in it, counted from its first."""
    starts = [0, *accumulate(map(len, pieces))]
    cuts = np.searchsorted(rows, starts).tolist()
    for piece, first, (start, stop) in zip(pieces, starts, pairwise(cuts), strict=False):
        yield piece, rows[start:stop] - first
