"""Stores of rows as a worker has them: NpyStore, LmdbStore, and for HDF5 ChunkStore and Hdf5Store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from streamd.config.load import load_config
from streamd.daemon.streams.catalog import open_streams, write_sample_manifests
from streamd.dataset.arrays.store import RowStore
from streamd.dataset.open_store import open_store

PIXELS = np.random.default_rng(1).integers(0, 256, (20, 6, 8, 3), dtype=np.uint8)


def write_hdf5(path: Path, images: Any = PIXELS, **settings: Any) -> Path:
    """A file with the array /x."""
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=images, **settings)
    return path


def write_hdf5_type(path: Path, stored: h5py.h5t.TypeID, images: Any, chunks: Any = None) -> Path:
    """A file with the array /x, whose numbers lie there in a type of HDF5 that need not be one of NumPy's."""
    settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if chunks is not None:
        settings.set_chunk(chunks)
    with h5py.File(path, "w") as file:
        space = h5py.h5s.create_simple(images.shape)
        h5py.h5d.create(file.id, b"x", stored, space, settings).write(h5py.h5s.ALL, h5py.h5s.ALL, images)
    return path


class OpenedStore:
    """A store over the `source` of a configuration; `stream` are more keys of its stream."""

    def __init__(self, source: Mapping[str, Any], state: Path, stream: Mapping[str, Any] | None = None) -> None:
        config = load_config({"streams": {"train": {"source": dict(source), **(stream or {})}}})
        write_sample_manifests(config, state, lambda *_: None)
        (self.stream,) = open_streams(config, state)
        self.root = os.open(self.stream.manifest.root, os.O_RDONLY | os.O_DIRECTORY)
        self.store = self.open_again()

    def open_again(self) -> RowStore:
        """Another store over the same."""
        store = open_store(self.stream.manifest, self.root)
        assert store is not None
        return store

    def gather(self, *ids: int) -> tuple[npt.NDArray[np.uint8], list[bool]]:
        """The images of these samples, and which of them the store held."""
        images = np.full((len(ids), *self.stream.spec.image_shape), 0xAA, np.uint8)
        return images, self.store.gather(np.array(ids, np.int64), {"image": images})[0].tolist()

    def close(self) -> None:
        self.store.close()
        self.stream.manifest.close()
        os.close(self.root)


def open_hdf5(path: Path, stream: Mapping[str, Any] | None = None, **source: Any) -> OpenedStore:
    """A store over /x of a file; `source` are more keys of its configuration."""
    return OpenedStore({"kind": "hdf5", "path": str(path), "images": "/x", **source}, path.parent / "state", stream)
