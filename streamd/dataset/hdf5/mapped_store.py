"""Samples that lie uncompressed in chunks of an HDF5 file: copied from known offsets of the mapped file.

The offset of each chunk was found when the samples were listed. So a worker opens no HDF5: it needs neither the
library's lock nor its memory, and never follows the numbers in a damaged file.
"""

from __future__ import annotations

import os
from itertools import chain
from math import prod
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from streamd.core.sampler import PAD_ID, Ids
from streamd.dataset.arrays.readahead import RowPrefetcher
from streamd.dataset.arrays.stale_files import ListedFiles
from streamd.dataset.arrays.store import Mask, Pixels
from streamd.dataset.arrays.to_uint8 import PixelConverter, RawRows
from streamd.dataset.hdf5.chunk_grid import CHUNK_OFFSETS, CHUNK_SHAPE, ChunkGrid
from streamd.dataset.manifest.manifest import Manifest
from streamd.dataset.manifest.types import ArrayFiles
from streamd.ipc.mapping import map_readable

Offsets: TypeAlias = npt.NDArray[np.int64]


class ChunkStore:
    """The samples of a manifest that lists an array in chunks.

    Once the file has changed, the store holds no sample any more.
    """

    def __init__(self, manifest: Manifest, arrays: ArrayFiles, root: int) -> None:
        """Maps the file. Raises ConfigError when it is not the listed one, OSError when it cannot be mapped."""
        self._manifest = manifest
        self._converter = PixelConverter(arrays)
        self._grid = build_chunk_grid(manifest, arrays, self._converter)
        self._offsets = manifest.find_extra_column(CHUNK_OFFSETS).reshape(-1, len(self._grid.row_pieces))
        self._part_bytes = prod(self._grid.chunk_shape[1:]) * self._converter.dtype.itemsize  # of a row, in one chunk
        self._files = ListedFiles(manifest, root)
        self._descriptor = self._files.open_file(0)
        try:
            memory = map_readable(self._descriptor, self._files.sizes[0])
        except BaseException:
            os.close(self._descriptor)
            raise
        self._bytes = np.frombuffer(memory, np.uint8)
        self._prefetcher = RowPrefetcher(self._part_bytes)

    def find_gatherable(self, ids: Ids) -> Mask:
        """Returns the mask of all samples, or of none once the file has changed."""
        return self._files.find_gatherable(ids)

    def find_permanent_fault(self, sample_id: int) -> str:
        """See `SampleStore`."""
        return self._converter.faults.get(sample_id, "")

    def prefetch_rows(self, ids: Ids) -> None:
        """Requests the rows that are not in memory from the disk."""
        if self._prefetcher.is_worthwhile:
            offsets = self._find_offsets(ids[ids != PAD_ID])
            self._prefetcher.prefetch_rows(
                (self._descriptor, offset) for offset in chain.from_iterable(offsets.tolist())
            )

    def gather_rows(self, ids: Ids, images: Pixels) -> Mask:
        """Copies rows into `images`, (n, H, W, C). Returns the mask of the `ids` that were copied, (n,)."""
        raw = self._converter.prepare_read_buffer(images)
        offsets = self._find_offsets(np.maximum(ids, 0))
        if self._grid.has_whole_rows:
            self._copy_rows(offsets, raw)
        else:
            self._assemble_rows_from_pieces(offsets, raw)
        self._prefetcher.record_page_faults()
        # The file is checked after the copy: rows that were written meanwhile are not served.
        good: Mask = self._files.find_gatherable(ids)
        return self._converter.convert_rows(raw, images, ids, good)

    def _find_offsets(self, ids: Ids) -> Offsets:
        """Returns the offset of each piece of each row in the file, in bytes, (n, pieces)."""
        chunks, inner = np.divmod(self._manifest.lookup_rows(ids), self._grid.chunk_rows)
        offsets: Offsets = self._offsets[chunks] + inner[:, np.newaxis] * self._part_bytes
        return offsets

    def _copy_rows(self, offsets: Offsets, raw: RawRows) -> None:
        nbytes = self._part_bytes
        rows = [self._bytes[offset : offset + nbytes] for offset in offsets[:, 0].tolist()]
        np.concatenate(rows, out=raw.reshape(-1).view(np.uint8))  # a little faster than a loop in Python

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
        os.close(self._descriptor)


def build_chunk_grid(manifest: Manifest, arrays: ArrayFiles, converter: PixelConverter) -> ChunkGrid:
    """Returns the grid of the listed array. An array of grey images may have no dimension for channels."""
    chunk = tuple(manifest.find_extra_column(CHUNK_SHAPE).tolist())
    shape = (arrays.starts[-1], *converter.shape)
    grey = len(chunk) < len(shape)
    return ChunkGrid(shape, (*chunk, 1) if grey else chunk)
