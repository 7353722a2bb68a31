"""Stored samples are gathered in one way, whatever their store: rows of one image, or of several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from support.array_records import MASKS, PHOTOS, build_array_stream
from support.record_readers import open_records

from streamd.core.sampler import PAD_ID
from streamd.core.spec import ImageSpec
from streamd.dataset.arrays.store import Pixels, RowStore
from streamd.decode.geometry import Geometry
from streamd.worker.array_records import ArrayRecords
from streamd.worker.stream_reader import StreamReader

IDS = np.array([3, PAD_ID, 0])


def gather(reader: StreamReader) -> tuple[list[bool], dict[int, Any], dict[str, Pixels]]:
    images = reader.spec.images
    rows = {name: np.zeros((3, *image.shape), image.dtype) for name, image in images.items()}
    assert reader.store is not None
    held, landed = reader.store.gather(IDS, rows)
    return held.tolist(), {place: landed[place] for place in np.flatnonzero(held).tolist()}, rows


def test_rows_of_one_image_land_as_they_are_stored(tmp_path: Path) -> None:
    with open_records(build_array_stream(tmp_path, "npy", {"photo": {}}), tmp_path) as reader:
        assert isinstance(reader.store, RowStore)
        held, landed, rows = gather(reader)
    whole = Geometry((40, 60), (0, 0, 60, 40), (40, 60), (0, 0, 60, 40))
    assert (held, landed) == ([True, False, True], {0: {"photo": whole}, 2: {"photo": whole}})
    assert np.array_equal(rows["photo"][[0, 2]], PHOTOS[[3, 0]])


def test_records_land_as_their_store_says(tmp_path: Path) -> None:
    images = {"photo": {"size": [40, 60]}, "mask": {"like": "photo", "mode": "index"}}
    with open_records(build_array_stream(tmp_path, "npy", images), tmp_path) as reader:
        assert isinstance(reader.store, ArrayRecords)
        held, landed, rows = gather(reader)
    mask = Geometry((20, 30), (0, 0, 30, 20), (40, 60), (0, 0, 60, 40))
    assert held == [True, False, True]
    assert (landed[0]["mask"], landed[2]["mask"]) == (mask, mask)
    assert np.array_equal(rows["mask"][0], np.kron(MASKS[3], np.ones((2, 2))))
    assert reader.spec.images["mask"] == ImageSpec(40, 60, 1, mode="index", like="photo", fill=255)
