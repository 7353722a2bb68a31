"""Opens what reads the samples of a list: a store of rows that need no decoding, or a reader of images in larger files.

Images in files of their own need neither.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from itertools import pairwise
from math import prod
from typing import Final

import numpy as np

from streamd.core.sampler import Ids
from streamd.dataset.arrays.store import ListedRows, Mask, RawRows, RowStore
from streamd.dataset.hdf5.chunk_grid import ChunkGrid
from streamd.dataset.hdf5.library_store import ChunkStore, Hdf5Store
from streamd.dataset.lmdb.pyxis_layout import COMMIT_COLUMN, OFFSETS_COLUMN, parse_last_commit, parse_lmdb_head
from streamd.dataset.manifest.manifest import Manifest
from streamd.dataset.manifest.types import ArrayFiles
from streamd.dataset.shard_reader import ShardReader
from streamd.errors import ConfigError


class LmdbStore(ChunkStore):
    """Images in an LMDB file, each a chunk by itself. Once the file is written to, the store holds no sample any more.

    The offset of each image was found when the samples were listed, and LMDB does not move what it has written. So a
    worker opens no LMDB: it locks nothing, registers no reader, and never follows numbers in a damaged file. The number
    of the last commit takes the place of a read transaction. LMDB writes into free pages only, and pages that a commit
    frees are reused by the next commit but one at the earliest. If the number is still the listed one after an image
    was copied, the image is whole.
    """

    def _open_files(self) -> None:
        self._commit = int(self._listed.find_extra_column(COMMIT_COLUMN)[0])
        shape = self._converter.shape
        self._map_chunks(ChunkGrid((self._arrays.starts[-1], *shape), (1, *shape)), OFFSETS_COLUMN)
        head = parse_lmdb_head(self._bytes.data)
        if head is None or head.commit != self._commit:
            raise ConfigError(
                f"{os.fsdecode(self._listed.file_name(0))!r} and all others are stale: their LMDB file was written to "
                "since they were listed; restart with --rescan to list it again"
            )
        self._page_bytes = head.page_bytes

    def find_gatherable(self, ids: Ids) -> Mask:
        """Returns the mask of all samples, or of none once the file has changed."""
        # `gather` calls this after the copy. If the commit were read before the copy, a writer could still reuse a
        # page in between.
        if parse_last_commit(self._bytes.data, self._page_bytes) != self._commit:
            return np.zeros(ids.size, np.bool_)
        return super().find_gatherable(ids)


class NpyStore(RowStore):
    """Rows of arrays that lie in their files in one piece: one NumPy call a task gathers them from the page cache."""

    def _open_files(self) -> None:
        self._mapped: list[RawRows] = []
        for file, (offset, (start, stop)) in enumerate(
            zip(self._arrays.offsets, pairwise(self._arrays.starts), strict=True)
        ):
            shape = (stop - start, *self._converter.shape)
            rows = np.frombuffer(self._map_file(file), self._converter.dtype, prod(shape), offset)
            self._mapped.append(rows.reshape(shape))

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


_RESCAN_REMEDY: Final = "list the samples again with --rescan"
_ROW_STORES: Final[dict[str, type[RowStore]]] = {
    "npy": NpyStore,
    "lmdb": LmdbStore,
    "chunks": ChunkStore,
    "hdf5": Hdf5Store,
}
_SHARD_READERS: Final[dict[str, type[ShardReader]]] = {
    "tar": ShardReader,
}


def open_store(manifest: Manifest, root: int) -> RowStore | None:
    """Opens the store of a manifest's samples, below the directory descriptor `root`; None if they must be decoded.

    Raises ConfigError when a file is not the listed one, DataAwayError when it is not there, OSError when it cannot be
    mapped.
    """
    return None if manifest.arrays is None else open_row_store(manifest, manifest.arrays, root)


def open_row_store(listed: ListedRows, arrays: ArrayFiles, root: int, *, by_row: bool = False) -> RowStore:
    """Opens the store of one image of the samples, as `open_store` does; `by_row` is that of `RowStore`."""
    kind = "npy" if arrays.stored is None else arrays.stored.store
    store = _ROW_STORES.get(kind)
    if store is None:
        # Another version of streamd may have listed the samples, with a store that this one lacks.
        raise ConfigError(f"this version of streamd has no store of kind {kind!r}: {_RESCAN_REMEDY}")
    return store(listed, arrays, root, by_row=by_row)


def open_shard_reader(manifest: Manifest, root: int) -> ShardReader | None:
    """Opens the reader of a manifest's images, below the directory descriptor `root`; None if there are no shards.

    Raises ConfigError when a shard is not the listed one, DataAwayError when it is not there.
    """
    shards = manifest.shards
    if shards is None:
        return None
    reader = _SHARD_READERS.get(shards.format)
    if reader is None:
        raise ConfigError(f"this version of streamd has no reader of {shards.format!r} files: {_RESCAN_REMEDY}")
    return reader(manifest, shards, root)
