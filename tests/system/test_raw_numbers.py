"""Numbers of 16 bits from files and arrays to the trainer, through a whole daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.stored_numbers import Numbers, build_numbers, encode_npy, encode_png, encode_tiff

import streamd

pytestmark = pytest.mark.long

TILE: dict[str, Any] = {"size": [20, 30], "mode": "raw", "channels": 4, "dtype": "uint16", "range": [0, 10000]}


def write_tiles(folder: Path) -> list[Numbers]:
    tiles = [build_numbers(20, 30, 4, "uint16") + np.uint16(number) for number in range(8)]
    rows = ["path,kind"]
    for number, tile in enumerate(tiles):
        name, data = [
            ("tif", encode_tiff(tile, compression="lzw", predictor=True, tile=(16, 16))),
            ("png", encode_png(tile)),
            ("tiff", encode_tiff(tile, planar=True, compression="zlib")),
            ("npy", encode_npy(np.moveaxis(tile, -1, 0))),
        ][number % 4]
        (folder / f"{number}.{name}").write_bytes(data)
        rows.append(f"{number}.{name},{number % 2}")
    (folder / "tiles.csv").write_text("\n".join(rows))
    np.save(folder / "tiles.npy", np.stack(tiles))
    return tiles


def test_tiles_of_four_channels_arrive_as_they_are_stored(tmp_path: Path) -> None:
    tiles = np.stack(write_tiles(tmp_path))
    files = {"kind": "table", "path": str(tmp_path / "tiles.csv"), "image": "path", "root": str(tmp_path)}
    common: dict[str, Any] = {"batch_size": 4, "shuffle": "none"}
    streams = {
        "files": {"source": files, "labels": {"kind": "category"}, "image": TILE, "normalize": "unit", **common},
        "cached": {"like": "files", "cache": {"path": str(tmp_path / "cache")}},
        "arrays": {
            "source": {"kind": "npy", "path": str(tmp_path / "tiles.npy")},
            "labels": {},
            "image": {**TILE, "size": "stored"},
            **common,
        },
    }
    with streamd.local({"workers": 1, "streams": streams}) as client:
        for name in ("files", "cached", "cached", "arrays"):
            with client.subscribe(name, epochs=1) as stream:
                batches = [batch.copy() for batch in stream]
                spec = stream.spec
            assert not any(batch.bad for batch in batches)
            assert np.array_equal(np.concatenate([batch.images for batch in batches]), tiles)
            assert (spec.image.dtype, spec.image.range) == ("uint16", (0.0, 10000.0))
        assert "data:image/png" in str(batches[0]._repr_html_())
        spec = client.streams()["files"]
        assert np.array_equal(streamd.load_image(tmp_path / "0.tif", spec), tiles[0])
        assert np.array_equal(streamd.load_image(tmp_path / "1.png", spec, "image"), tiles[1])
