"""Samples of an HDF5 file that only h5py can read: compressed, not in NumPy's number format, or not all written.

Whole chunks are read. The library converts numbers whose bits are not as NumPy's.

HDF5 has one lock for everything a process does with it, so each worker process has its own. A chunk that was read is
kept as long as there is room in the process, since the next task may need its other rows.
"""

from __future__ import annotations

import os
import time
from typing import Any, Final

import numpy as np

from streamd.core.sampler import Ids
from streamd.dataset.arrays.stale_files import ListedFiles
from streamd.dataset.arrays.store import Mask, Pixels
from streamd.dataset.arrays.to_uint8 import PixelConverter, RawRows
from streamd.dataset.hdf5.arrays import find_sliceable_rows
from streamd.dataset.hdf5.chunk_cache import CHUNK_CACHE, ArrayKey
from streamd.dataset.hdf5.chunk_grid import ChunkGrid
from streamd.dataset.hdf5.mapped_store import build_chunk_grid
from streamd.dataset.hdf5.open import UnfitHdf5Error, open_hdf5_file
from streamd.dataset.manifest.manifest import Manifest
from streamd.dataset.manifest.types import ArrayFiles, StorageFormat
from streamd.errors import ConfigError

DAMAGED_CHUNK: Final = "its chunk of the file is damaged: it cannot be decompressed"
_SYSTEM_FAILURE: Final = (
    "errno"  # in HDF5's message when the system failed: such a fault may pass, so it condemns no sample
)


class Hdf5Store:
    """The samples of a manifest that lists an array in HDF5.

    Once the file has changed, the store holds no sample any more.
    """

    def __init__(self, manifest: Manifest, arrays: ArrayFiles, stored: StorageFormat, root: int) -> None:
        """Opens the file.

        Raises ConfigError when it is not the listed one or cannot be read, MissingExtraError, OSError.
        """
        self._manifest = manifest
        self._converter = PixelConverter(arrays)
        self._files = ListedFiles(manifest, root)
        self._descriptor = self._files.open_file(0)
        try:
            self._file = open_hdf5_file(self._descriptor, cache_bytes=0)
        except UnfitHdf5Error as error:
            os.close(self._descriptor)
            raise ConfigError(f"{os.fsdecode(manifest.array_file_names()[0])!r} cannot be read: {error}") from error
        except BaseException:
            os.close(self._descriptor)
            raise
        seen = os.fstat(self._descriptor)
        # The key of the chunk cache includes the size and mtime: a file that was replaced or rewritten finds no chunks
        # of the earlier one.
        array = (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, stored.place)
        grid = build_chunk_grid(manifest, arrays, self._converter)
        self._chunks = ChunkReader(find_sliceable_rows(self._file, stored.place), array, grid, self._converter)

    @property
    def decompression_totals(self) -> tuple[int, float]:
        """The number of chunks decompressed so far, and the seconds that took."""
        return self._chunks.unpacked_chunks, self._chunks.unpack_s

    def find_gatherable(self, ids: Ids) -> Mask:
        """Returns the mask of all samples, or of none once the file has changed."""
        return self._files.find_gatherable(ids)

    def find_permanent_fault(self, sample_id: int) -> str:
        """See `SampleStore`."""
        return self._converter.faults.get(sample_id, "")

    def prefetch_rows(self, ids: Ids) -> None:
        """Does nothing: reading ahead would take the library's lock, which the present task needs."""

    def gather_rows(self, ids: Ids, images: Pixels) -> Mask:
        """Copies rows into `images`, (n, H, W, C). Returns the mask of the `ids` that were copied, (n,)."""
        raw = self._converter.prepare_read_buffer(images)
        rows = self._manifest.lookup_rows(np.maximum(ids, 0))
        bad = self._chunks.read_rows(rows.tolist(), raw)
        # The file is checked after it was read: rows that were written meanwhile are not served. A chunk that cannot be
        # decompressed is damaged only in a file that is still the listed one.
        good: Mask = self._files.find_gatherable(ids)
        for place, reason in bad.items():
            if good[place]:
                good[place] = False
                self._converter.faults[int(ids[place])] = reason
        return self._converter.convert_rows(raw, images, ids, good)

    def close(self) -> None:
        """Closes the file, and drops its chunks. Another store over the same array reads them again."""
        self._chunks.close()
        self._file.close()
        os.close(self._descriptor)


class ChunkReader:
    """Reads the rows of an array, or of a table's column, by whole chunks.

    `unpacked_chunks` counts the chunks read so far, and `unpack_s` the seconds that took.
    """

    def __init__(self, dataset: Any, array: ArrayKey, grid: ChunkGrid, converter: PixelConverter) -> None:
        self._dataset = dataset
        self._array = array
        self._chunk_rows = grid.chunk_rows
        self._shape = converter.shape
        self._chunk_bytes = grid.chunk_rows * converter.row_bytes
        self.unpacked_chunks = 0
        self.unpack_s = 0.0

    def read_rows(self, rows: list[int], raw: RawRows) -> dict[int, str]:
        """Copies `rows` to `raw`.

        Returns the positions whose chunks are damaged, and why. Raises OSError if the system fails.
        """
        bad: dict[int, str] = {}
        numbers = [row // self._chunk_rows for row in rows]
        # In this order rows of one chunk follow each other, so that each chunk is read once.
        for place in CHUNK_CACHE.order_cached_first(self._array, numbers):
            try:
                raw[place] = self._read_chunk(numbers[place])[rows[place] % self._chunk_rows]
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
        CHUNK_CACHE.evict_chunks(self._chunk_bytes)
        started_s, first = time.monotonic(), number * self._chunk_rows
        read: RawRows = self._dataset[first : first + self._chunk_rows]
        self.unpacked_chunks += 1
        self.unpack_s += time.monotonic() - started_s
        chunk = read.reshape(-1, *self._shape)
        CHUNK_CACHE.add_chunk(self._array, number, chunk)
        return chunk

    def close(self) -> None:
        """Drops the chunks that are kept."""
        CHUNK_CACHE.drop_array(self._array)
