"""Arrays in mode raw: every store serves the numbers as they are stored, in native byte order, channels last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from support.lmdb_files import write_lmdb
from support.stored_numbers import Numbers, build_numbers
from support.stores_on_disk import OpenedStore

from streamd.errors import ConfigError

IDS = np.array([5, 0, 3, 3], np.int64)


def lay_out(kind: str, folder: Path, rows: Numbers) -> dict[str, Any]:
    if kind == "npy":
        np.save(folder / "x.npy", rows)
        return {"kind": "npy", "path": str(folder / "x.npy")}
    if kind == "lmdb":
        write_lmdb(folder / "x.lmdb", [{"X": row, "y": number} for number, row in enumerate(rows)], subdir=False)
        return {"kind": "lmdb", "path": str(folder / "x.lmdb"), "images": "X"}
    settings: dict[str, dict[str, Any]] = {
        "hdf5": {},
        "chunks": {"chunks": (2, *rows.shape[1:])},
        "gzip": {"chunks": True, "compression": "gzip"},
    }
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("x", data=rows, **settings[kind])
    return {"kind": "hdf5", "path": str(folder / "x.h5"), "images": "/x"}


def open_raw(folder: Path, kind: str, rows: Numbers, channels: int, dtype: str) -> OpenedStore:
    (folder / "data").mkdir()
    image = {"size": "stored", "mode": "raw", "channels": channels, "dtype": dtype}
    return OpenedStore(lay_out(kind, folder / "data", rows), folder / "state", {"image": image})


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
@pytest.mark.parametrize("kind", ["npy", "lmdb", "hdf5", "chunks", "gzip"])
@pytest.mark.parametrize("form", ["last", "first", "other bytes"])
def test_numbers_are_served_as_they_are_stored(tmp_path: Path, kind: str, dtype: str, form: str) -> None:
    rows = np.stack([build_numbers(6, 8, 5, dtype) + np.array(number, dtype) for number in range(7)])
    if dtype == "float32":
        rows[5, 0, 0, 0] = np.nan  # a number that is none is stored, too
    stored = np.moveaxis(rows, -1, 1) if form == "first" else rows
    if form == "other bytes":
        stored = stored.astype(rows.dtype.newbyteorder(">"))
    opened = open_raw(tmp_path, kind, stored, 5, dtype)
    assert (opened.stream.spec.image.dtype, opened.stream.spec.image_shape) == (dtype, (6, 8, 5))
    found = np.empty((len(IDS), 6, 8, 5), dtype)
    assert opened.store.gather(IDS, {"image": found})[0].all()
    assert np.array_equal(found, rows[IDS], equal_nan=dtype == "float32")
    assert opened.stream.manifest.arrays is not None
    assert opened.stream.manifest.arrays.row_bytes == rows[0].nbytes
    opened.close()


@pytest.mark.parametrize(
    ("channels", "dtype", "sentence"),
    [
        (4, "uint16", r"holds uint16 \(7, 6, 8, 5\), but image has channels: 4; write the number that the array has"),
        (5, "float32", r"holds uint16 \(7, 6, 8, 5\), but image has dtype: float32; write dtype: uint16"),
    ],
)
def test_arrays_of_another_form_are_refused(tmp_path: Path, channels: int, dtype: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        open_raw(tmp_path, "npy", np.zeros((7, 6, 8, 5), np.uint16), channels, dtype)
