"""What all stores of rows share: they gather the rows of listed files until one of these files has changed."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

import numpy as np

from streamd.core.sampler import PAD_ID, Ids
from streamd.dataset.arrays.readahead import RowPrefetcher
from streamd.dataset.arrays.stale_files import ListedFiles
from streamd.dataset.arrays.store import Mask, Pixels
from streamd.dataset.arrays.to_uint8 import PixelConverter, RawRows
from streamd.dataset.manifest.manifest import Manifest
from streamd.dataset.manifest.types import ArrayFiles
from streamd.ipc.mapping import map_readable


class RowStore(ABC):
    """A SampleStore of the samples of a manifest that lists arrays.

    Once a file has changed, the store holds no sample any more.
    """

    def __init__(self, manifest: Manifest, arrays: ArrayFiles, root: int) -> None:
        """Opens all files. Raises ConfigError when a file is not the listed one, OSError when it cannot be mapped."""
        self._manifest = manifest
        self._arrays = arrays
        self._converter = PixelConverter(arrays)
        self._files = ListedFiles(manifest, root)
        self._descriptors: list[int] = []
        self._prefetcher = RowPrefetcher(self._converter.row_bytes)
        try:
            self._open_files()
        except BaseException:
            # Files before the one that failed are open already.
            self._close_descriptors()
            raise

    @abstractmethod
    def _open_files(self) -> None:
        """Opens the files, and maps them where rows are copied from a mapping."""

    @abstractmethod
    def _locate_rows(self, rows: Ids) -> Iterable[tuple[int, int]]:
        """Returns where `rows` lie: descriptors, and offsets in bytes."""

    @abstractmethod
    def _copy_rows(self, rows: Ids, raw: RawRows) -> Mapping[int, str]:
        """Copies `rows` to `raw`, as they are stored. Returns the positions of the damaged ones, and why."""

    def _open_file(self, file: int) -> int:
        self._descriptors.append(self._files.open_file(file))
        return self._descriptors[-1]

    def _map_file(self, file: int) -> memoryview:
        return map_readable(self._open_file(file), self._files.sizes[file])

    def find_gatherable(self, ids: Ids) -> Mask:
        """Returns the mask of all samples, or of none once a file has changed."""
        return self._files.find_gatherable(ids)

    def prefetch_rows(self, ids: Ids) -> None:
        """Requests the rows that are not in memory from the disk."""
        if self._prefetcher.is_worthwhile:
            self._prefetcher.prefetch_rows(self._locate_rows(self._manifest.lookup_rows(ids[ids != PAD_ID])))

    def gather_rows(self, ids: Ids, images: Pixels) -> Mask:
        """Copies rows into `images`, (n, H, W, C). Returns the mask of the `ids` that were copied, (n,)."""
        raw = self._converter.prepare_read_buffer(images)
        # PAD_ID is negative. The first sample is read in its place, and the mask below leaves it out.
        damaged = self._copy_rows(self._manifest.lookup_rows(np.maximum(ids, 0)), raw)
        self._prefetcher.record_page_faults()
        # The files are checked after the copy. If a file was found to be written meanwhile, no row is served, and what
        # could not be read is not held against a sample. With many files, only the next check that is due notices it.
        good = self.find_gatherable(ids)
        for place, reason in damaged.items():
            if good[place]:
                good[place] = False
                self._converter.faults[int(ids[place])] = reason
        return self._converter.convert_rows(raw, images, ids, good)

    def find_permanent_fault(self, sample_id: int) -> str:
        """See `SampleStore`."""
        return self._converter.faults.get(sample_id, "")

    def close(self) -> None:
        """Closes the files. A subclass drops what it has mapped before."""
        self._close_descriptors()

    def _close_descriptors(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())
