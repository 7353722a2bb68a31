"""Samples that lie uncompressed in chunks of an HDF5 file: copied from known offsets of the mapped file.

The offset of each chunk was found when the samples were listed. So a worker opens no HDF5: it needs neither the
library's lock nor its memory, and never follows the numbers in a damaged file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from math import prod
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from streamd.core.sampler import Ids
from streamd.dataset.arrays.readahead import RowPrefetcher
from streamd.dataset.arrays.row_store import RowStore
from streamd.dataset.arrays.store import ListedRows
from streamd.dataset.arrays.to_uint8 import PixelConverter, RawRows
from streamd.dataset.hdf5.chunk_grid import CHUNK_OFFSETS, CHUNK_SHAPE, ChunkGrid
from streamd.dataset.manifest.types import ArrayFiles

Offsets: TypeAlias = npt.NDArray[np.int64]


class ChunkStore(RowStore):
    """Rows of an array in chunks."""

    def _open_files(self) -> None:
        self._grid = build_chunk_grid(self._listed, self._arrays, self._converter)
        self._offsets = self._listed.find_extra_column(CHUNK_OFFSETS).reshape(-1, len(self._grid.row_pieces))
        self._part_bytes = prod(self._grid.chunk_shape[1:]) * self._converter.dtype.itemsize  # of a row, in one chunk
        self._bytes = np.frombuffer(self._map_file(0), np.uint8)
        self._prefetcher = RowPrefetcher(self._part_bytes)

    def _locate_rows(self, rows: Ids) -> Iterable[tuple[int, int]]:
        offsets = self._find_offsets(rows).tolist()
        return ((self._descriptors[0], offset) for offset in chain.from_iterable(offsets))

    def _copy_rows(self, rows: Ids, raw: RawRows) -> Mapping[int, str]:
        offsets = self._find_offsets(rows)
        if self._grid.has_whole_rows:
            nbytes = self._part_bytes
            whole = [self._bytes[offset : offset + nbytes] for offset in offsets[:, 0].tolist()]
            np.concatenate(whole, out=raw.reshape(-1).view(np.uint8))  # a little faster than a loop in Python
        else:
            self._assemble_rows_from_pieces(offsets, raw)
        return {}

    def _find_offsets(self, rows: Ids) -> Offsets:
        """Returns the offset of each piece of each row in the file, in bytes, (n, pieces)."""
        chunks, inner = np.divmod(rows, self._grid.chunk_rows)
        offsets: Offsets = self._offsets[chunks] + inner[:, np.newaxis] * self._part_bytes
        return offsets

    def _assemble_rows_from_pieces(self, offsets: Offsets, raw: RawRows) -> None:
        """Copies rows piece by piece.

        Large images span several chunks each, and the last of these may reach beyond the image.
        """
        for row, begins in zip(raw, offsets.tolist(), strict=True):
            for piece, offset in zip(self._grid.row_pieces, begins, strict=True):
                part = self._bytes[offset : offset + self._part_bytes].view(self._converter.dtype)
                row[piece.in_row] = part.reshape(self._grid.chunk_shape[1:])[piece.in_chunk]

    def close(self) -> None:
        """Drops the mapping and the column of the manifest, and closes the file."""
        self._bytes = np.empty(0, np.uint8)
        self._offsets = np.empty((0, 1), np.int64)
        super().close()


def build_chunk_grid(listed: ListedRows, arrays: ArrayFiles, converter: PixelConverter) -> ChunkGrid:
    """Returns the grid of the listed array. An array of grey images may have no dimension for channels."""
    chunk = tuple(listed.find_extra_column(CHUNK_SHAPE).tolist())
    shape = (arrays.starts[-1], *converter.shape)
    grey = len(chunk) < len(shape)
    return ChunkGrid(shape, (*chunk, 1) if grey else chunk)
