"""Samples of an HDF5 file that only h5py can read: compressed, not in NumPy's number format, or not all written.

Whole chunks are read. The library converts numbers whose bits are not as NumPy's.

HDF5 has one lock for everything a process does with it, so each worker process has its own. A chunk that was read is
kept as long as there is room in the process, since the next task may need its other rows.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from typing import Final

from streamd.core.sampler import Ids
from streamd.dataset.arrays.row_store import RowStore
from streamd.dataset.arrays.to_uint8 import RawRows
from streamd.dataset.hdf5.arrays import find_sliceable_rows
from streamd.dataset.hdf5.chunk_cache import CHUNK_CACHE, ArrayKey
from streamd.dataset.hdf5.mapped_store import build_chunk_grid
from streamd.dataset.hdf5.open import UnfitHdf5Error, open_hdf5_file
from streamd.errors import ConfigError

DAMAGED_CHUNK: Final = "its chunk of the file is damaged: it cannot be decompressed"
# HDF5's message contains this word when a system call failed. Such a fault may pass, so it condemns no sample.
_SYSTEM_FAILURE: Final = "errno"


class Hdf5Store(RowStore):
    """Rows of an array, or of a table's column, read by whole chunks.

    `decompression_totals` has the number of chunks decompressed so far, and the seconds that took.
    """

    def _open_files(self) -> None:
        """Opens the file. Raises ConfigError when it cannot be read, MissingExtraError, OSError."""
        self.decompression_totals = (0, 0.0)
        descriptor = self._open_file(0)
        try:
            self._file = open_hdf5_file(descriptor, cache_bytes=0)
        except UnfitHdf5Error as error:
            name = self._listed.array_file_names()[0]
            raise ConfigError(f"{os.fsdecode(name)!r} cannot be read: {error}") from error
        seen, place = os.fstat(descriptor), self._converter.stored.place
        # The key of the chunk cache includes the size and mtime: a file that was replaced or rewritten finds no chunks
        # of the earlier one.
        self._array: ArrayKey = (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, place)
        self._dataset = find_sliceable_rows(self._file, place)
        self._chunk_rows = build_chunk_grid(self._listed, self._arrays, self._converter).chunk_rows

    def _locate_rows(self, rows: Ids) -> Iterable[tuple[int, int]]:
        """Returns nothing: reading ahead would take the library's lock, which the present task needs."""
        del rows
        return ()

    def _copy_rows(self, rows: Ids, raw: RawRows) -> Mapping[int, str]:
        """Copies rows to `raw`. Raises OSError if the system fails."""
        bad: dict[int, str] = {}
        numbers, inner = (rows // self._chunk_rows).tolist(), (rows % self._chunk_rows).tolist()
        # In this order rows of one chunk follow each other, so that each chunk is read once.
        for place in CHUNK_CACHE.order_cached_first(self._array, numbers):
            try:
                raw[place] = self._read_chunk(numbers[place])[inner[place]]
            except OSError as error:
                if _SYSTEM_FAILURE in str(error):
                    raise
                bad[place] = DAMAGED_CHUNK
        return bad

    def _read_chunk(self, number: int) -> RawRows:
        """Returns the rows of a chunk. Where a row is in several chunks, side by side, all of them are read."""
        kept = CHUNK_CACHE.get_chunk(self._array, number)
        if kept is not None:
            return kept
        CHUNK_CACHE.evict_chunks(self._chunk_rows * self._converter.row_bytes)
        started_s, first = time.monotonic(), number * self._chunk_rows
        read: RawRows = self._dataset[first : first + self._chunk_rows]
        unpacked, unpack_s = self.decompression_totals
        self.decompression_totals = (unpacked + 1, unpack_s + time.monotonic() - started_s)
        chunk = read.reshape(-1, *self._converter.shape)
        CHUNK_CACHE.add_chunk(self._array, number, chunk)
        return chunk

    def close(self) -> None:
        """Closes the file, and drops its chunks. Another store over the same array reads them again."""
        CHUNK_CACHE.drop_array(self._array)
        self._file.close()
        super().close()
