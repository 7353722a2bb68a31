"""Samples that are rows of mapped arrays: gathered from the page cache into the slot, by one NumPy call a task."""

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
    """All samples of a manifest that lists arrays. Those of a file that has changed are held no more."""

    def __init__(self, manifest: Manifest, arrays: ArrayFiles, root: int) -> None:
        """Raises ConfigError when a file is not the one that was listed, OSError when it cannot be mapped."""
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
        """All of them, unless a file has changed."""
        return self._files.find_gatherable(ids)

    def prefetch_rows(self, ids: Ids) -> None:
        """Has rows read that are not in memory."""
        if self._prefetcher.is_worthwhile:
            self._prefetcher.prefetch_rows(
                map(self._locate_row, self._manifest.lookup_rows(ids[ids != PAD_ID]).tolist())
            )

    def _locate_row(self, row: int) -> tuple[int, int]:
        """Where a row lies: the descriptor of its file, and the bytes before it."""
        file, inner = self._arrays.locate_row(row)
        return self._descriptors[file], self._arrays.offsets[file] + inner * self._converter.row_bytes

    def gather_rows(self, ids: Ids, images: Pixels) -> Mask:
        """Copies rows into `images`, (n, H, W, C); which of `ids` they are, (n,)."""
        rows, raw = self._manifest.lookup_rows(ids), self._converter.prepare_read_buffer(images)
        if len(self._mapped) == 1:
            np.take(self._mapped[0], rows, axis=0, out=raw, mode="clip")  # "raise" would go by a copy
        else:
            for place, row in enumerate(rows.tolist()):
                file, inner = self._arrays.locate_row(max(row, 0))
                raw[place] = self._mapped[file][inner]
        self._prefetcher.record_page_faults()
        return self._converter.convert_rows(raw, images, ids, self.find_gatherable(ids))

    def find_permanent_fault(self, sample_id: int) -> str:
        """See Store."""
        return self._converter.faults.get(sample_id, "")

    def close(self) -> None:
        """Lets go of the mappings and of their files."""
        self._mapped.clear()
        while self._descriptors:
            os.close(self._descriptors.pop())
