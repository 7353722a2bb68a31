"""Samples that are rows of mapped arrays: one NumPy call a task gathers them from the page cache into the slot."""

from __future__ import annotations

import os
from math import prod

import numpy as np

from streamd.core.sampler import PAD_ID, Ids
from streamd.dataset.arrays.readahead import RowPrefetcher
from streamd.dataset.arrays.stale_files import ListedFiles
from streamd.dataset.arrays.store import Mask, Pixels
from streamd.dataset.arrays.to_uint8 import PixelConverter, RawRows
from streamd.dataset.manifest.manifest import Manifest
from streamd.dataset.manifest.types import ArrayFiles
from streamd.ipc.mapping import map_readable


class NpyStore:
    """The samples of a manifest that lists arrays. Once a file has changed, the store holds no sample any more."""

    def __init__(self, manifest: Manifest, arrays: ArrayFiles, root: int) -> None:
        """Maps all files. Raises ConfigError when a file is not the listed one, OSError when it cannot be mapped."""
        self._manifest = manifest
        self._arrays = arrays
        self._converter = PixelConverter(arrays)
        self._files = ListedFiles(manifest, root)
        self._descriptors: list[int] = []
        self._mapped: list[RawRows] = []
        try:
            for file, size in enumerate(self._files.sizes):
                self._map_file(file, size)
        except BaseException:
            # Files before the one that failed are open and mapped already.
            self.close()
            raise
        self._prefetcher = RowPrefetcher(self._converter.row_bytes)

    def _map_file(self, file: int, size: int) -> None:
        self._descriptors.append(self._files.open_file(file))
        starts, offset = self._arrays.starts, self._arrays.offsets[file]
        rows = starts[file + 1] - starts[file]
        memory = map_readable(self._descriptors[file], size)
        shape, dtype = (rows, *self._converter.shape), self._converter.dtype
        self._mapped.append(np.frombuffer(memory, dtype, prod(shape), offset).reshape(shape))

    def find_gatherable(self, ids: Ids) -> Mask:
        """Returns the mask of all samples, or of none once a file has changed."""
        return self._files.find_gatherable(ids)

    def prefetch_rows(self, ids: Ids) -> None:
        """Starts reading the rows that are not in memory."""
        if self._prefetcher.is_worthwhile:
            self._prefetcher.prefetch_rows(
                map(self._locate_row, self._manifest.lookup_rows(ids[ids != PAD_ID]).tolist())
            )

    def _locate_row(self, row: int) -> tuple[int, int]:
        """Returns the descriptor of a row's file, and the offset of the row in bytes."""
        file, inner = self._arrays.locate_row(row)
        return self._descriptors[file], self._arrays.offsets[file] + inner * self._converter.row_bytes

    def gather_rows(self, ids: Ids, images: Pixels) -> Mask:
        """Copies rows into `images`, (n, H, W, C). Returns the mask of the `ids` that were copied, (n,)."""
        rows, raw = self._manifest.lookup_rows(ids), self._converter.prepare_read_buffer(images)
        # PAD_ID is negative, so both branches read the first row in its place. The mask below leaves it out.
        if len(self._mapped) == 1:
            np.take(self._mapped[0], rows, axis=0, out=raw, mode="clip")  # "raise" would make a copy first
        else:
            for place, row in enumerate(rows.tolist()):
                file, inner = self._arrays.locate_row(max(row, 0))
                raw[place] = self._mapped[file][inner]
        self._prefetcher.record_page_faults()
        # The files are checked after the copy: rows of a file that was written meanwhile are not served.
        return self._converter.convert_rows(raw, images, ids, self.find_gatherable(ids))

    def find_permanent_fault(self, sample_id: int) -> str:
        """See `SampleStore`."""
        return self._converter.faults.get(sample_id, "")

    def close(self) -> None:
        """Drops the mappings and closes their files."""
        self._mapped.clear()
        while self._descriptors:
            os.close(self._descriptors.pop())
