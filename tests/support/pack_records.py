"""Samples of several images in every mode, with boxes and points, to be packed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

from support.stored_numbers import build_numbers, encode_png, encode_tiff

HEIGHT, WIDTH = 20, 30
COUNT = 5
IMAGES: dict[str, Any] = {
    "photo": {"from": "photo", "size": [10, 12], "resize": "crop", "normalize": "unit"},
    "mask": {"from": "mask", "like": "photo", "mode": "index", "fill": 7},
    "parts": {"from": "parts", "like": "photo", "size": [5, 6], "mode": "index", "dtype": "uint16"},
    "seen": {"from": "seen", "size": [8, 8], "mode": "RGBA"},
    "band": {"from": "band", "size": [9, 9], "resize": "pad", "mode": "raw", "channels": 4, "dtype": "uint16"},
    "depth": {"from": "depth", "size": [6, 7], "mode": "raw", "channels": 2, "dtype": "float32", "range": [-9, 9]},
}
LABELS: dict[str, Any] = {
    "label": "category",
    "boxes": {"type": "boxes", "max": 4, "of": "photo", "classes": ["cat", "dog"], "min_visible": 0.2},
    "points": {"type": "points", "max": 3, "unit": "fraction"},
    "angle": "float",
}
_BOXES: Final[tuple[Any, ...]] = (
    [[8, 2, 20, 10, "dog"], [0, 0, 30, 20, 0]],
    [],
    [[0, 0, 5, 5, 1], [10, 10, 30, 20, 1]],
    None,
    [[9, 4, 12, 9]],
)
_POINTS: Final[tuple[Any, ...]] = (
    [[0.5, 0.5], [0.01, 0.5], [0.2, 0.2, 0]],
    [],
    [[0.4, 0.9, 1]],
    None,
    [[0.6, 0.6], [0.5, 0.1], [0.3, 0.3]],
)


def write_records(folder: Path, **stream: Any) -> dict[str, Any]:
    """Writes records and the table that names their files; returns the configuration of a stream `train` over them."""
    folder.mkdir()
    rows = ["photo\tmask\tparts\tseen\tband\tdepth\tlabel\tangle\tboxes\tpoints\tweigh"]
    rng = np.random.default_rng(5)
    for number in range(COUNT):
        colours = rng.integers(0, 256, (HEIGHT, WIDTH, 4), dtype=np.uint8)
        Image.fromarray(colours[..., :3]).save(folder / f"photo{number}.png")
        Image.fromarray(rng.integers(0, 9, (HEIGHT, WIDTH), dtype=np.uint8)).save(folder / f"mask{number}.png")
        Image.fromarray(rng.integers(0, 999, (HEIGHT, WIDTH), dtype=np.uint16)).save(folder / f"parts{number}.png")
        Image.fromarray(colours).save(folder / f"seen{number}.png")
        band = build_numbers(HEIGHT, WIDTH, 4, "uint16")
        (folder / f"band{number}").write_bytes(encode_png(band) if number % 2 else encode_tiff(band))
        np.save(folder / f"depth{number}.npy", build_numbers(HEIGHT, WIDTH, 2, "float32") + number)
        files = [f"photo{number}.png", f"mask{number}.png", f"parts{number}.png", f"seen{number}.png", f"band{number}"]
        boxes, points = (
            "" if cell is None else json.dumps(cell, separators=(",", ":"))
            for cell in (_BOXES[number], _POINTS[number])
        )
        cells = [*files, f"depth{number}.npy", "ab"[number % 2], str(number / 4), boxes, points, str(number + 1)]
        rows.append("\t".join(f'"{cell.replace(chr(34), chr(34) * 2)}"' for cell in cells))
    (folder / "table.tsv").write_text("\n".join([*rows, ""]))
    source = {"kind": "table", "path": str(folder / "table.tsv")}
    base = {"source": source, "images": IMAGES, "labels": LABELS, "weights": "weigh", "normalize": "minus_one_one"}
    return {"workers": 1, "streams": {"train": {**base, **stream}}}
