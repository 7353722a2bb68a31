"""Samples that are rows of mapped arrays: gathered from the page cache into the slot, by one NumPy call a task."""

from __future__ import annotations

import os
from math import prod

import numpy as np

from streamd.core.sampler import PAD_ID, Ids
from streamd.dataset.arrays.readahead import Ahead
from streamd.dataset.arrays.stale_files import ListedFiles
from streamd.dataset.arrays.store import Mask, Pixels
from streamd.dataset.arrays.to_uint8 import Conversion, Raw
from streamd.dataset.manifest.manifest import Manifest
from streamd.dataset.manifest.types import Arrays
from streamd.ipc.mapping import map_readable


class ArrayStore:
    """All samples of a manifest that lists arrays. Those of a file that has changed are held no more."""

    def __init__(self, manifest: Manifest, arrays: Arrays, root: int) -> None:
        """Raises ConfigError when a file is not the one that was listed, OSError when it cannot be mapped."""
        self._manifest = manifest
        self._arrays = arrays
        self._conversion = Conversion(arrays)
        self._files = ListedFiles(manifest, root)
        self._descriptors: list[int] = []
        self._mapped: list[Raw] = []
        try:
            for file, size in enumerate(self._files.sizes):
                self._map(file, size)
        except BaseException:
            self.close()
            raise
        self._ahead = Ahead(self._conversion.row_bytes)

    def _map(self, file: int, size: int) -> None:
        self._descriptors.append(self._files.open(file))
        starts, offset = self._arrays.starts, self._arrays.offsets[file]
        rows = starts[file + 1] - starts[file]
        memory = map_readable(self._descriptors[file], size)
        shape, dtype = (rows, *self._conversion.shape), self._conversion.dtype
        self._mapped.append(np.frombuffer(memory, dtype, prod(shape), offset).reshape(shape))

    def held(self, ids: Ids) -> Mask:
        """All of them, unless a file has changed."""
        return self._files.held(ids)

    def expect(self, ids: Ids) -> None:
        """Has rows read that are not in memory."""
        if self._ahead.asks:
            self._ahead.ask(map(self._lies, self._manifest.rows(ids[ids != PAD_ID]).tolist()))

    def _lies(self, row: int) -> tuple[int, int]:
        """Where a row lies: the descriptor of its file, and the bytes before it."""
        file, inner = self._arrays.place(row)
        return self._descriptors[file], self._arrays.offsets[file] + inner * self._conversion.row_bytes

    def gather(self, ids: Ids, images: Pixels) -> Mask:
        """Copies rows into `images`, (n, H, W, C); which of `ids` they are, (n,)."""
        rows, raw = self._manifest.rows(ids), self._conversion.room(images)
        if len(self._mapped) == 1:
            np.take(self._mapped[0], rows, axis=0, out=raw, mode="clip")  # "raise" would go by a copy
        else:
            for place, row in enumerate(rows.tolist()):
                file, inner = self._arrays.place(max(row, 0))
                raw[place] = self._mapped[file][inner]
        self._ahead.note()
        return self._conversion.finish(raw, images, ids, self.held(ids))

    def fault(self, sample_id: int) -> str:
        """See Store."""
        return self._conversion.faults.get(sample_id, "")

    def close(self) -> None:
        """Lets go of the mappings and of their files."""
        self._mapped.clear()
        while self._descriptors:
            os.close(self._descriptors.pop())
