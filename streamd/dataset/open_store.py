"""Which store a list of samples is gathered from, if they need no decoding."""

from __future__ import annotations

from streamd.dataset.arrays.npy_store import ArrayStore
from streamd.dataset.arrays.store import Store
from streamd.dataset.hdf5.library_store import Hdf5Store
from streamd.dataset.hdf5.mapped_store import ChunkStore
from streamd.dataset.lmdb.store import LmdbStore
from streamd.dataset.manifest.manifest import Manifest
from streamd.errors import ConfigError


def open_store(manifest: Manifest, root: int) -> Store | None:
    """The store of a manifest's samples, below the directory descriptor `root`; None: they are to be decoded.

    Raises ConfigError when a file is not the one that was listed, OSError when it cannot be opened.
    """
    arrays = manifest.arrays
    if arrays is None:
        return None
    if arrays.stored is None:
        return ArrayStore(manifest, arrays, root)
    match arrays.stored.store:
        case "npy":
            return ArrayStore(manifest, arrays, root)
        case "lmdb":
            return LmdbStore(manifest, arrays, root)
        case "chunks":
            return ChunkStore(manifest, arrays, root)
        case "hdf5":
            return Hdf5Store(manifest, arrays, arrays.stored, root)
    raise ConfigError(f"no store of kind {arrays.stored.store!r} in this version: list the samples anew with --rescan")
