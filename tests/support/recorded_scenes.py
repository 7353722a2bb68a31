"""A table of small scenes: a photo, its mask, its distances in 16 bits, heights as floats, boxes, labels, weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv
from PIL import Image

SCENES: Final = 24
BATCH: Final = 4
UNREADABLE: Final = 5  # the scene whose photo is damaged, where there is one

_NAMES: Final = ("photo", "mask", "far", "height")
_SIZE: Final = 16


def write_scenes(folder: Path, *, damaged: bool = False) -> Path:
    """Writes the pictures and `scenes.csv`, and returns the table's path.

    A scene is a bright square on dark ground: the mask is 1 on the square, `x` is where its left side lies, the box is
    the square itself. Every fourth scene weighs nothing.
    """
    for name in _NAMES:
        (folder / name).mkdir(parents=True)
    rows = [_write_scene(folder, number) for number in range(SCENES)]
    if damaged:
        (folder / str(rows[UNREADABLE]["photo"])).write_bytes(b"not a picture")
    table = folder / "scenes.csv"
    pa.csv.write_csv(pa.Table.from_pylist(rows), table)
    return table


def _write_scene(folder: Path, number: int) -> dict[str, object]:
    left = number % 8
    mask = np.zeros((_SIZE, _SIZE), np.uint8)
    mask[4:12, left : left + 8] = 1
    photo = np.stack([mask * 150 + 40 + channel + number for channel in range(3)], axis=-1)
    pictures = {
        "photo": Image.fromarray(photo),
        "mask": Image.fromarray(mask),
        "far": Image.fromarray(mask.astype(np.uint16) * 60_000 + number),
        "height": Image.fromarray(mask * np.float32(2.5) - 1),
    }
    paths = {name: f"{name}/{number:02}.{'tif' if name == 'height' else 'png'}" for name in pictures}
    for name, picture in pictures.items():
        picture.save(folder / paths[name])
    boxes = json.dumps([[left, 4, left + 8, 12, 0]])
    return {**paths, "boxes": boxes, "x": left / 8, "side": "left" if left < 4 else "right", "weight": number % 4 / 2}


def configure_scenes(table: Path, *, weighted: bool = False, **changes: object) -> dict[str, Any]:
    """Returns a stream over the scenes with all their images, `x`, `side` and boxes."""
    size = {"size": [_SIZE, _SIZE]}
    images = {
        "photo": {"from": "photo", **size, "normalize": "unit"},
        "mask": {"from": "mask", "like": "photo", "mode": "index"},
        "far": {"from": "far", "like": "photo", "mode": "raw", "channels": 1, "dtype": "uint16", "normalize": "unit"},
        "height": {
            "from": "height",
            "like": "photo",
            "mode": "raw",
            "channels": 1,
            "dtype": "float32",
            "range": [-1, 1.5],
            "normalize": "unit",
        },
        "glass": {"from": "photo", "like": "photo", "mode": "RGBA", "normalize": "minus_one_one"},
        "pair": {"from": "photo", **size, "resize": "random_crop", "views": 2, "normalize": "imagenet"},
    }
    labels = {"x": "float", "side": "category", "boxes": {"type": "boxes", "of": "photo", "max": 2}}
    weights = {"weights": "weight"} if weighted else {}
    return {
        "source": {"kind": "table", "path": str(table), "root": str(table.parent)},
        "images": images,
        "labels": labels,
        "batch_size": BATCH,
        **weights,
        **changes,
    }
