"""Photos with masks beside them: masks are smooth regions of class numbers, so that a wrong pixel shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from support.smooth_pictures import smooth

HEIGHT, WIDTH = 60, 80
PHOTO: Final[dict[str, Any]] = {"size": [24, 32], "resize": "random_crop"}
MASK: Final[dict[str, Any]] = {"like": "photo", "mode": "index", "from": "masks/{stem}.png"}

Numbers = npt.NDArray[np.uint8]


def build_mask(number: int, height: int = HEIGHT, width: int = WIDTH) -> Numbers:
    """The class numbers of photo `number`, (height, width)."""
    down, across = np.mgrid[0:height, 0:width]
    return np.asarray((down * 8 // height) * 8 + across * 8 // width + number, np.uint8)


def save_palette_png(path: Path, numbers: Numbers) -> None:
    """Saves class numbers as palette indices; the palette's colours say nothing about them."""
    picture = Image.fromarray(numbers).convert("P")
    picture.putdata(numbers.ravel().tolist())
    picture.putpalette([(7 * place) % 256 for place in range(768)])
    picture.save(path)


def write_masked_photos(folder: Path, count: int = 6) -> Path:
    """Makes `photos/N.png` and `masks/N.png`, and `table.csv`, which names both. Returns the folder."""
    for name in ("photos", "masks"):
        (folder / name).mkdir(parents=True)
    rows = ["picture,mask,label"]
    for number in range(count):
        smooth(HEIGHT, WIDTH).point(lambda level, by=number: min(255, level + by)).save(
            folder / "photos" / f"{number}.png"
        )
        save_palette_png(folder / "masks" / f"{number}.png", build_mask(number))
        rows.append(f"photos/{number}.png,masks/{number}.png,{number % 2}")
    (folder / "table.csv").write_text("\n".join([*rows, ""]))
    return folder


def folder_config(folder: Path, **changes: Any) -> dict[str, Any]:
    """A stream of the folder's photos, without labels, each with its mask."""
    source = {"kind": "folder", "path": str(folder)}
    return {"source": source, "labels": {}, "images": {"photo": PHOTO, "mask": MASK}, "batch_size": 3} | changes


def table_config(folder: Path, **changes: Any) -> dict[str, Any]:
    """The same of the columns of a table."""
    source = {"kind": "table", "path": str(folder / "table.csv")}
    images = {"photo": {**PHOTO, "from": "picture"}, "mask": {"like": "photo", "mode": "index"}}
    return {"source": source, "labels": {"label": "category"}, "images": images, "batch_size": 3} | changes
