"""Which store a list of samples is gathered from, if they need no decoding."""

from __future__ import annotations

from streamd.errors import ConfigError
from streamd.manifest import Manifest
from streamd.stores import Store
from streamd.stores.chunked import ChunkStore
from streamd.stores.hdf5 import Hdf5Store
from streamd.stores.lmdb import LmdbStore
from streamd.stores.npy import ArrayStore


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
