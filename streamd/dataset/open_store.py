"""Opens what reads the samples of a list: a store of rows that need no decoding, or a reader of images in larger files.

Images in files of their own need neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import Final

import numpy as np

from streamd.core.sampler import Ids
from streamd.dataset.arrays.store import ListedRows, RawRows, RowStore, SampleStore
from streamd.dataset.hdf5.library_store import ChunkStore, Hdf5Store
from streamd.dataset.lmdb.store import LmdbStore
from streamd.dataset.manifest.manifest import Manifest
from streamd.dataset.manifest.types import ArrayFiles
from streamd.dataset.shard_reader import ShardReader
from streamd.errors import ConfigError

# --- Samples that are rows of mapped arrays: one NumPy call a task gathers them from the page cache into the slot.


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


# --- Opens what reads the samples of a list: a store of rows that need no decoding, or a reader of images in ...

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


def open_store(manifest: Manifest, root: int) -> SampleStore | None:
    """Opens the store of a manifest's samples, below the directory descriptor `root`; None if they must be decoded.

    Raises ConfigError when a file is not the listed one, DataAwayError when it is not there, OSError when it cannot be
    mapped.
    """
    return None if manifest.arrays is None else open_row_store(manifest, manifest.arrays, root)


def open_row_store(listed: ListedRows, arrays: ArrayFiles, root: int) -> SampleStore:
    """Opens the store of one image of the samples, as `open_store` does."""
    kind = "npy" if arrays.stored is None else arrays.stored.store
    store = _ROW_STORES.get(kind)
    if store is None:
        # Another version of streamd may have listed the samples, with a store that this one lacks.
        raise ConfigError(f"this version of streamd has no store of kind {kind!r}: {_RESCAN_REMEDY}")
    return store(listed, arrays, root)


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
