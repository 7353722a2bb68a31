"""Samples of an HDF5 file that are compressed, of another form than NumPy's, or not all written: read by h5py.

A chunk is read whole. Numbers in other bits than NumPy's are converted by the library.

HDF5 has one lock for all that a process does with it; each worker is a process. A chunk that was read is kept as long
as there is room in the process, since the next task may want its other rows.
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
    "errno"  # in what HDF5 says when the system failed it, which may pass, as where a mapping ends by SIGBUS
)


class Hdf5Store:
    """All samples of a manifest that lists an array in HDF5. They are held no more when its file has changed."""

    def __init__(self, manifest: Manifest, arrays: ArrayFiles, stored: StorageFormat, root: int) -> None:
        """Raises ConfigError when the file is not the one that was listed, or h5py is missing; OSError."""
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
        array = (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, stored.place)
        grid = build_chunk_grid(manifest, arrays, self._converter)
        self._chunks = ChunkReader(find_sliceable_rows(self._file, stored.place), array, grid, self._converter)

    @property
    def decompression_totals(self) -> tuple[int, float]:
        """How many chunks were decompressed so far, and the seconds that it took."""
        return self._chunks.unpacked_chunks, self._chunks.unpack_s

    def find_gatherable(self, ids: Ids) -> Mask:
        """All of them, unless the file has changed."""
        return self._files.find_gatherable(ids)

    def find_permanent_fault(self, sample_id: int) -> str:
        """See Store."""
        return self._converter.faults.get(sample_id, "")

    def prefetch_rows(self, ids: Ids) -> None:
        """Nothing: to read ahead would take the lock that the present task needs."""

    def gather_rows(self, ids: Ids, images: Pixels) -> Mask:
        """Copies rows into `images`, (n, H, W, C); which of `ids` they are, (n,)."""
        raw = self._converter.prepare_read_buffer(images)
        rows = self._manifest.lookup_rows(np.maximum(ids, 0))
        bad = self._chunks.read_rows(rows.tolist(), raw)
        good: Mask = self._files.find_gatherable(ids)  # after reading: what was written meanwhile does not count
        for place, reason in bad.items():
            if good[place]:
                good[place] = False
                self._converter.faults[int(ids[place])] = reason
        return self._converter.convert_rows(raw, images, ids, good)

    def close(self) -> None:
        """Lets go of the file and of its chunks, which another store over the same array reads again."""
        self._chunks.close()
        self._file.close()
        os.close(self._descriptor)


class ChunkReader:
    """The rows of an array, or of a table's column, by whole chunks. `unpacked` were read so far, in `unpack_s`."""

    def __init__(self, dataset: Any, array: ArrayKey, grid: ChunkGrid, converter: PixelConverter) -> None:
        self._dataset = dataset
        self._array = array
        self._chunk_rows = grid.chunk_rows
        self._shape = converter.shape
        self._chunk_bytes = grid.chunk_rows * converter.row_bytes
        self.unpacked_chunks = 0
        self.unpack_s = 0.0

    def read_rows(self, rows: list[int], raw: RawRows) -> dict[int, str]:
        """Copies `rows` to `raw`; the places whose chunks are damaged, and how. Raises OSError if the system fails."""
        bad: dict[int, str] = {}
        numbers = [row // self._chunk_rows for row in rows]
        for place in CHUNK_CACHE.order_cached_first(self._array, numbers):  # a chunk that many share is read once
            try:
                raw[place] = self._read_chunk(numbers[place])[rows[place] % self._chunk_rows]
            except OSError as error:
                if _SYSTEM_FAILURE in str(error):
                    raise
                bad[place] = DAMAGED_CHUNK
        return bad

    def _read_chunk(self, number: int) -> RawRows:
        """The rows of a chunk, and of those beside it that have the other parts of them."""
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
        """Drops what is kept."""
        CHUNK_CACHE.drop_array(self._array)
