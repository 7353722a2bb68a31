"""Draws docs/batch-masks.png anew, which docs/boxes.md shows: masks over their photos, and boxes.

scripts/docs pictures
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image, ImageDraw

import streamd
from streamd.decode.drawn_picture import draw_sheet

PICTURE: Final = Path(__file__).resolve().parents[2] / "docs" / "batch-masks.png"
_SCENES: Final = 24
_HEIGHT, _WIDTH = 192, 256
_HORIZON: Final = 80
_GROUND, _CAR, _TREE = 1, 2, 3  # class numbers; 0 is the sky
_COLOURS: Final = ((150, 190, 225), (128, 120, 112), (176, 54, 48), (52, 104, 60))
_CLASSES: Final = ("car", "tree")


def write_scenes(folder: Path) -> Path:
    """Writes photos, masks and `scenes.csv`, which has the boxes of cars and trees; returns the table's path."""
    rng = np.random.default_rng(3)
    rows = ["photo,mask,boxes"]
    for name in ("photo", "mask"):
        (folder / name).mkdir()
    for number in range(_SCENES):
        mask = Image.new("P", (_WIDTH, _HEIGHT))
        mask.putpalette([level for colour in _COLOURS for level in colour])
        boxes = _draw_scene(ImageDraw.Draw(mask), rng)
        mask.save(folder / "mask" / f"{number:02}.png")
        colours = np.asarray(mask.convert("RGB"), np.float64)
        lit = colours * np.linspace(1.08, 0.86, _HEIGHT)[:, None, None] + rng.normal(0, 7, colours.shape)
        Image.fromarray(lit.clip(0, 255).astype(np.uint8)).save(folder / "photo" / f"{number:02}.png")
        cell = json.dumps(boxes).replace('"', '""')
        rows.append(f'photo/{number:02}.png,mask/{number:02}.png,"{cell}"')
    table = folder / "scenes.csv"
    table.write_text("\n".join([*rows, ""]), encoding="utf-8")
    return table


def _draw_scene(draw: ImageDraw.ImageDraw, rng: np.random.Generator) -> list[list[Any]]:
    """Draws class numbers, and returns the boxes: left, top, right, bottom and class."""
    draw.rectangle((0, _HORIZON, _WIDTH, _HEIGHT), _GROUND)
    boxes: list[list[Any]] = []
    for left in rng.permutation([10, 92, 174])[: rng.integers(2, 4)].tolist():
        size = int(rng.integers(44, 70))
        if rng.random() < 0.5:  # noqa: PLR2004 - as many cars as trees
            top = int(rng.integers(100, 150))
            draw.rounded_rectangle((left, top, left + size, top + size // 3), 6, _CAR)
            draw.rounded_rectangle((left + size // 5, top - size // 5, left + size * 4 // 5, top + 8), 6, _CAR)
            boxes.append([left, top - size // 5, left + size, top + size // 3, "car"])
        else:
            draw.ellipse((left, 24, left + size, 24 + size), _TREE)
            draw.rectangle((left + size * 2 // 5, 20 + size, left + size * 3 // 5, 120), _TREE)
            boxes.append([left, 24, left + size, 120, "tree"])
    return boxes


def draw_masked_batch() -> Path:
    """Draws the first batch of the scenes as `streamd show` does, and returns the picture's path."""
    with tempfile.TemporaryDirectory() as folder:
        train = {
            "source": {"kind": "table", "path": str(write_scenes(Path(folder)))},
            "labels": {"boxes": {"type": "boxes", "of": "photo", "max": 4, "classes": list(_CLASSES)}},
            "images": {
                "photo": {"size": [144, 192], "resize": "random_crop", "scale": [0.5, 1.0]},
                "mask": {"like": "photo", "mode": "index"},
            },
            "batch_size": 8,
        }
        with streamd.local({"streams": {"train": train}}) as client:
            batch = client.batch("train", 0, 0)
            names = client.names("train", batch.sample_ids)
            sheet = draw_sheet(batch, dict(zip(batch.sample_ids.tolist(), names, strict=True)), len(batch))
    sheet.quantize(128).save(PICTURE, optimize=True)
    return PICTURE
