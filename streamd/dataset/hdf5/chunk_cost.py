"""The cost of arrays in compressed chunks, where one row costs its whole chunk and a worker keeps few chunks. Pure.

The order of an epoch decides how often each chunk is decompressed: once a worker, where a buffer of the shuffle spans
no more chunks than a worker keeps; up to once a row, where it spans many.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, prod
from typing import Final

import numpy as np

from streamd.dataset.hdf5.chunk_grid import CHUNK_SHAPE
from streamd.dataset.manifest.types import ArrayFiles, Int64s
from streamd.limits import CHUNKS_KEPT_BYTES

LIBRARY_STORE: Final = "hdf5"  # the store that reads through h5py, for rows that cannot be copied from the file

_LEAST_BUFFER: Final = 2  # chunks: rows of one chunk alone are hardly mixed
_USUAL_BUFFER: Final = 16  # chunks, of _USUAL_CHUNK samples each, as for arrays that are not compressed
_USUAL_CHUNK: Final = 3200


@dataclass(frozen=True, slots=True)
class CompressedArray:
    """An array of `rows` in compressed chunks of `chunk_rows` rows each, always several.

    `chunk_bytes` is the size of a chunk when decompressed.
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
