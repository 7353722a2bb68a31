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
from streamd.dataset.arrays.to_uint8 import Conversion, Raw
from streamd.dataset.hdf5.arrays import rows_at
from streamd.dataset.hdf5.chunk_cache import KEPT, Array
from streamd.dataset.hdf5.chunk_grid import Grid
from streamd.dataset.hdf5.mapped_store import grid_of
from streamd.dataset.hdf5.open import UnfitHdf5Error, open_file
from streamd.dataset.manifest.manifest import Manifest
from streamd.dataset.manifest.types import Arrays, Stored
from streamd.errors import ConfigError

DAMAGED: Final = "its chunk of the file is damaged: it cannot be decompressed"
_SYSTEM: Final = (
    "errno"  # in what HDF5 says when the system failed it, which may pass, as where a mapping ends by SIGBUS
)


class Hdf5Store:
    """All samples of a manifest that lists an array in HDF5. They are held no more when its file has changed."""

    def __init__(self, manifest: Manifest, arrays: Arrays, stored: Stored, root: int) -> None:
        """Raises ConfigError when the file is not the one that was listed, or h5py is missing; OSError."""
        self._manifest = manifest
        self._conversion = Conversion(arrays)
        self._files = ListedFiles(manifest, root)
        self._descriptor = self._files.open(0)
        try:
            self._file = open_file(self._descriptor, cache_bytes=0)
        except UnfitHdf5Error as error:
            os.close(self._descriptor)
            raise ConfigError(f"{os.fsdecode(manifest.array_files()[0])!r} cannot be read: {error}") from error
        except BaseException:
            os.close(self._descriptor)
            raise
        seen = os.fstat(self._descriptor)
        array = (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, stored.place)
        grid = grid_of(manifest, arrays, self._conversion)
        self._chunks = Chunks(rows_at(self._file, stored.place), array, grid, self._conversion)

    @property
    def unpacked(self) -> tuple[int, float]:
        """How many chunks were decompressed so far, and the seconds that it took."""
        return self._chunks.unpacked, self._chunks.unpack_s

    def held(self, ids: Ids) -> Mask:
        """All of them, unless the file has changed."""
        return self._files.held(ids)

    def fault(self, sample_id: int) -> str:
        """See Store."""
        return self._conversion.faults.get(sample_id, "")

    def expect(self, ids: Ids) -> None:
        """Nothing: to read ahead would take the lock that the present task needs."""

    def gather(self, ids: Ids, images: Pixels) -> Mask:
        """Copies rows into `images`, (n, H, W, C); which of `ids` they are, (n,)."""
        raw = self._conversion.room(images)
        rows = self._manifest.rows(np.maximum(ids, 0))
        bad = self._chunks.read(rows.tolist(), raw)
        good: Mask = self._files.held(ids)  # after reading: what was written meanwhile does not count
        for place, reason in bad.items():
            if good[place]:
                good[place] = False
                self._conversion.faults[int(ids[place])] = reason
        return self._conversion.finish(raw, images, ids, good)

    def close(self) -> None:
        """Lets go of the file and of its chunks, which another store over the same array reads again."""
        self._chunks.close()
        self._file.close()
        os.close(self._descriptor)


class Chunks:
    """The rows of an array, or of a table's column, by whole chunks. `unpacked` were read so far, in `unpack_s`."""

    def __init__(self, dataset: Any, array: Array, grid: Grid, conversion: Conversion) -> None:
        self._dataset = dataset
        self._array = array
        self._rows = grid.chunk_rows
        self._shape = conversion.shape
        self._chunk_bytes = grid.chunk_rows * conversion.row_bytes
        self.unpacked = 0
        self.unpack_s = 0.0

    def read(self, rows: list[int], raw: Raw) -> dict[int, str]:
        """Copies `rows` to `raw`; the places whose chunks are damaged, and how. Raises OSError if the system fails."""
        bad: dict[int, str] = {}
        numbers = [row // self._rows for row in rows]
        for place in KEPT.kept_first(self._array, numbers):  # a chunk that many share is read once
            try:
                raw[place] = self._chunk(numbers[place])[rows[place] % self._rows]
            except OSError as error:
                if _SYSTEM in str(error):
                    raise
                bad[place] = DAMAGED
        return bad

    def _chunk(self, number: int) -> Raw:
        """The rows of a chunk, and of those beside it that have the other parts of them."""
        kept = KEPT.get(self._array, number)
        if kept is not None:
            return kept
        KEPT.make_room(self._chunk_bytes)
        started_s, first = time.monotonic(), number * self._rows
        read: Raw = self._dataset[first : first + self._rows]
        self.unpacked += 1
        self.unpack_s += time.monotonic() - started_s
        chunk = read.reshape(-1, *self._shape)
        KEPT.put(self._array, number, chunk)
        return chunk

    def close(self) -> None:
        """Drops what is kept."""
        KEPT.forget(self._array)
