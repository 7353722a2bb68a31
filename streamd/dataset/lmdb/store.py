"""Samples that are arrays in the values of an LMDB file: copied from the mapped file into the slot.

The offset of each image was found when the samples were listed, and LMDB does not move what it has written. So a worker
opens no LMDB: it locks nothing, registers no reader, and never follows numbers in a damaged file. The number of the
last commit takes the place of a read transaction. LMDB writes into free pages only, and pages that a commit frees are
reused by the next commit but one at the earliest. If the number is still the listed one after an image was copied, the
image is whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

import numpy as np

from streamd.core.sampler import Ids
from streamd.dataset.arrays.store import Mask, RawRows, RowStore
from streamd.dataset.lmdb.pyxis_layout import COMMIT_COLUMN, OFFSETS_COLUMN, parse_last_commit, parse_lmdb_head
from streamd.errors import ConfigError


class LmdbStore(RowStore):
    """Images in an LMDB file. Once the file has been written to, the store holds no sample any more."""

    def _open_files(self) -> None:
        self._commit = int(self._listed.find_extra_column(COMMIT_COLUMN)[0])
        self._memory = self._map_file(0)
        self._page_bytes = self._read_page_bytes()
        self._pixels = np.frombuffer(self._memory, np.uint8)

    def _read_page_bytes(self) -> int:
        head = parse_lmdb_head(self._memory)
        if head is not None and head.commit == self._commit:
            return head.page_bytes
        raise ConfigError(
            f"{os.fsdecode(self._listed.file_name(0))!r} and all others are stale: their LMDB file was written to "
            "since they were listed; restart with --rescan to list it again"
        )

    def find_gatherable(self, ids: Ids) -> Mask:
        """Returns the mask of all samples, or of none once the file has changed."""
        # `gather_rows` calls this after the copy. If the commit were read before the copy, a writer could still reuse a
        # page in between.
        if parse_last_commit(self._memory, self._page_bytes) != self._commit:
            return np.zeros(ids.size, np.bool_)
        return super().find_gatherable(ids)

    def _locate_rows(self, rows: Ids) -> Iterable[tuple[int, int]]:
        return ((self._descriptors[0], offset) for offset in self._find_offsets(rows))

    def _copy_rows(self, rows: Ids, raw: RawRows) -> Mapping[int, str]:
        copied, row_bytes = raw.reshape(len(raw), -1).view(np.uint8), self._converter.row_bytes
        for place, offset in enumerate(self._find_offsets(rows)):
            copied[place] = self._pixels[offset : offset + row_bytes]
        return {}

    def _find_offsets(self, rows: Ids) -> list[int]:
        """Returns the offset of each image in the file, in bytes."""
        offsets: list[int] = self._listed.find_extra_column(OFFSETS_COLUMN)[rows].tolist()
        return offsets

    def close(self) -> None:
        """Drops the mapping, and closes its file."""
        self._memory = memoryview(b"")
        self._pixels = np.frombuffer(self._memory, np.uint8)
        super().close()
