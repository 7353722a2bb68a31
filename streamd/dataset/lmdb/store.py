"""Samples that are arrays in the values of an LMDB file: copied from the mapped file into the slot.

The offset of each image was found when the samples were listed, and LMDB does not move what it has written. So a worker
opens no LMDB: it locks nothing, registers no reader, and never follows numbers in a damaged file. The number of the
last commit takes the place of a read transaction. LMDB writes into free pages only, and pages that a commit frees are
reused by the next commit but one at the earliest. If the number is still the listed one after an image was copied, the
image is whole.
"""

from __future__ import annotations

import os

import numpy as np

from streamd.core.sampler import PAD_ID, Ids
from streamd.dataset.arrays.readahead import RowPrefetcher
from streamd.dataset.arrays.stale_files import ListedFiles
from streamd.dataset.arrays.store import Mask, Pixels
from streamd.dataset.arrays.to_uint8 import PixelConverter
from streamd.dataset.lmdb.file_head import COMMIT_COLUMN, OFFSETS_COLUMN, parse_last_commit, parse_lmdb_head
from streamd.dataset.manifest.manifest import Manifest
from streamd.dataset.manifest.types import ArrayFiles
from streamd.errors import ConfigError
from streamd.ipc.mapping import map_readable


class LmdbStore:
    """The samples of a manifest that lists an LMDB file.

    Once the file has been written to, the store holds no sample any more.
    """

    def __init__(self, manifest: Manifest, arrays: ArrayFiles, root: int) -> None:
        """Maps the file. Raises ConfigError when it is not the listed one, OSError when it cannot be mapped."""
        self._manifest = manifest
        self._commit = int(manifest.find_extra_column(COMMIT_COLUMN)[0])
        self._converter = PixelConverter(arrays)
        self._files = ListedFiles(manifest, root)
        self._descriptor = self._files.open_file(0)
        try:
            self._memory = map_readable(self._descriptor, self._files.sizes[0])
            self._page_bytes = self._read_page_bytes()
        except BaseException:
            os.close(self._descriptor)
            raise
        self._pixels = np.frombuffer(self._memory, np.uint8)
        self._prefetcher = RowPrefetcher(self._converter.row_bytes)

    def _read_page_bytes(self) -> int:
        head = parse_lmdb_head(self._memory)
        if head is not None and head.commit == self._commit:
            return head.page_bytes
        raise ConfigError(
            f"{os.fsdecode(self._manifest.file_name(0))!r} and all others are stale: their LMDB file was written "
            "to since they were listed; restart with --rescan to list it again"
        )

    def find_gatherable(self, ids: Ids) -> Mask:
        """Returns the mask of all samples, or of none once the file has changed."""
        if parse_last_commit(self._memory, self._page_bytes) != self._commit:
            return np.zeros(ids.size, np.bool_)
        return self._files.find_gatherable(ids)

    def find_permanent_fault(self, sample_id: int) -> str:
        """See `SampleStore`."""
        return self._converter.faults.get(sample_id, "")

    def prefetch_rows(self, ids: Ids) -> None:
        """Requests the images that are not in memory from the disk."""
        if self._prefetcher.is_worthwhile:
            self._prefetcher.prefetch_rows(
                (self._descriptor, offset) for offset in self._find_offsets(ids[ids != PAD_ID])
            )

    def gather_rows(self, ids: Ids, images: Pixels) -> Mask:
        """Copies images into `images`, (n, H, W, C). Returns the mask of the `ids` that were copied, (n,)."""
        raw = self._converter.prepare_read_buffer(images)
        rows, row_bytes = raw.reshape(len(raw), -1).view(np.uint8), self._converter.row_bytes
        for place, offset in enumerate(self._find_offsets(np.maximum(ids, 0))):
            rows[place] = self._pixels[offset : offset + row_bytes]
        self._prefetcher.record_page_faults()
        # The commit is read after the copy. Read before it, a writer could still reuse a page in between.
        good = self.find_gatherable(ids)
        return self._converter.convert_rows(raw, images, ids, good)

    def _find_offsets(self, ids: Ids) -> list[int]:
        """Returns the offset of each image in the file, in bytes."""
        offsets: list[int] = self._manifest.find_extra_column(OFFSETS_COLUMN)[self._manifest.lookup_rows(ids)].tolist()
        return offsets

    def close(self) -> None:
        """Drops the mapping, and closes its file."""
        self._memory = memoryview(b"")
        self._pixels = np.frombuffer(self._memory, np.uint8)
        os.close(self._descriptor)
