"""Samples that are rows of mapped arrays: one NumPy call a task gathers them from the page cache into the slot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

import numpy as np

from streamd.core.sampler import Ids
from streamd.dataset.arrays.row_store import RowStore
from streamd.dataset.arrays.to_uint8 import RawRows


class NpyStore(RowStore):
    """Rows of arrays that lie in their files in one piece."""

    def _open_files(self) -> None:
        self._mapped = [self._map_rows(file) for file in range(len(self._arrays.offsets))]

    def _map_rows(self, file: int) -> RawRows:
        starts, memory = self._arrays.starts, self._map_file(file)
        shape = (starts[file + 1] - starts[file], *self._converter.shape)
        return np.frombuffer(memory, self._converter.dtype, prod(shape), self._arrays.offsets[file]).reshape(shape)

    def _locate_rows(self, rows: Ids) -> Iterable[tuple[int, int]]:
        for file, inner in map(self._arrays.locate_row, rows.tolist()):
            yield self._descriptors[file], self._arrays.offsets[file] + inner * self._converter.row_bytes

    def _copy_rows(self, rows: Ids, raw: RawRows) -> Mapping[int, str]:
        if len(self._mapped) == 1:
            np.take(self._mapped[0], rows, axis=0, out=raw, mode="clip")  # "raise" would make a copy first
        else:
            for place, (file, inner) in enumerate(map(self._arrays.locate_row, rows.tolist())):
                raw[place] = self._mapped[file][inner]
        return {}

    def close(self) -> None:
        """Drops the mappings, and closes their files."""
        self._mapped.clear()
        super().close()
