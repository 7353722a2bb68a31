"""Photos, masks and bands as arrays of npy, HDF5 and LMDB: the same numbers in each."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np

from support.lmdb_files import write_lmdb
from support.smooth_pictures import smooth

COUNT: Final = 6
HEIGHT, WIDTH = 40, 60
KINDS: Final = ("npy", "hdf5", "hdf5 compressed", "lmdb")
PHOTOS: Final = np.stack(
    [np.asarray(smooth(HEIGHT, WIDTH).point(lambda level, by=8 * k: min(255, level + by))) for k in range(COUNT)]
)
# Each mask holds its class numbers in regions of ten by ten pixels, of half the photo's size.
MASKS: Final = np.stack([np.kron(np.arange(6).reshape(2, 3) + k, np.ones((10, 10), np.int64)) for k in range(COUNT)])
BANDS: Final = (np.arange(COUNT * 8 * 10 * 4, dtype=np.uint16) * 37).reshape(COUNT, 8, 10, 4)
BOXES: Final = np.array([[[10, 5, 30, 25, k], [-1] * 5] for k in range(COUNT)], np.float32)
ARRAYS: Final[dict[str, Any]] = {"photo": PHOTOS, "mask": MASKS, "band": BANDS, "boxes": BOXES}


def write_arrays(folder: Path, kind: str, **changed: Any) -> dict[str, Any]:
    """Writes the arrays, some of them changed, and returns the stream's source. Without the photos' own array."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {**ARRAYS, **changed}
    if kind == "npy":
        for name, values in arrays.items():
            np.save(folder / f"{name}.npy", values)
        return {"kind": "npy", "path": str(folder / "photo.npy")}
    if kind == "lmdb":
        rows = [{name: values[row] for name, values in arrays.items()} for row in range(len(arrays["photo"]))]
        write_lmdb(folder / "d.lmdb", rows)
        return {"kind": "lmdb", "path": str(folder / "d.lmdb")}
    with h5py.File(folder / "x.h5", "w") as file:
        for name, values in arrays.items():
            settings = {"compression": "gzip", "chunks": (2, *values.shape[1:])} if "compressed" in kind else {}
            file.create_dataset(name, data=values, **settings)
    return {"kind": "hdf5", "path": str(folder / "x.h5")}


def build_array_stream(folder: Path, kind: str, images: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """Writes the arrays of `kind`, and returns a stream of `images`, each with its `from`."""
    source = write_arrays(folder, kind, **keys.pop("arrays", {}))
    return {"source": source, "labels": {}, "images": name_arrays(kind, images, folder), "batch_size": 3} | keys


def name_arrays(kind: str, images: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Adds the array to each image: its .npy file, or nothing where the entry's own name is that of the array."""
    if kind != "npy":
        return images
    return {
        name: each if name == "photo" else {"from": str(folder / f"{name}.npy")} | each for name, each in images.items()
    }
