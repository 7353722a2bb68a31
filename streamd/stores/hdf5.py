"""Samples in chunks of an HDF5 file that are compressed, or not all written: read by h5py, whole chunks at a time.

HDF5 has one lock for all that a process does with it; each worker is a process. A chunk that was read is kept as long
as there is room, since the next task may want its other rows.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import Any, Final

import numpy as np

from streamd.errors import ConfigError
from streamd.hdf5file import UnfitHdf5Error, open_file
from streamd.limits import CHUNKS_KEPT_BYTES
from streamd.manifest import Manifest
from streamd.plan import Ids
from streamd.sources.grid import Grid
from streamd.sources.wanted import Arrays, Stored
from streamd.stores import Mask, Pixels
from streamd.stores.chunked import grid_of
from streamd.stores.converted import Conversion, Raw
from streamd.stores.unchanged import ListedFiles

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
        self._chunks = Chunks(self._file[stored.place], grid_of(manifest, arrays, self._conversion), self._conversion)

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
        """Lets go of the file."""
        self._file.close()
        os.close(self._descriptor)


class Chunks:
    """The rows of an h5py.Dataset, by whole chunks, the last ones of which are kept."""

    def __init__(self, dataset: Any, grid: Grid, conversion: Conversion) -> None:
        self._dataset = dataset
        self._grid = grid
        self._shape = conversion.shape
        self._kept: OrderedDict[int, Raw] = OrderedDict()
        self._most = max(1, CHUNKS_KEPT_BYTES // (grid.chunk_rows * conversion.row_bytes))

    def read(self, rows: list[int], raw: Raw) -> dict[int, str]:
        """Copies `rows` to `raw`; the places whose chunks are damaged, and how. Raises OSError if the system fails."""
        bad: dict[int, str] = {}
        for place in sorted(range(len(rows)), key=rows.__getitem__):  # a chunk that many share is read once
            number, inner = divmod(rows[place], self._grid.chunk_rows)
            try:
                raw[place] = self._chunk(number)[inner]
            except OSError as error:
                if _SYSTEM in str(error):
                    raise
                bad[place] = DAMAGED
        return bad

    def _chunk(self, number: int) -> Raw:
        """The rows of a chunk, and of those beside it that have the other parts of them."""
        if number in self._kept:
            self._kept.move_to_end(number)
            return self._kept[number]
        while len(self._kept) >= self._most:
            self._kept.popitem(last=False)
        first = number * self._grid.chunk_rows
        chunk: Raw = self._dataset[first : first + self._grid.chunk_rows]
        self._kept[number] = chunk.reshape(-1, *self._shape)
        return self._kept[number]
