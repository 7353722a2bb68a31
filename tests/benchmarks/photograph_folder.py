"""A folder of photographs in several sizes, a class each, as JPEG and as PNG."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from make_data import PHOTOGRAPHS, QUALITY, Cut, cut, photograph

SIDE: Final = 128  # to which they are brought
SMALLER: Final = (96, 128)  # width and height of what is enlarged
LARGER: Final = ((500, 375), (375, 500))  # of what is made smaller, three or four times
UNEVEN: Final = (301, 203)  # whose longer side is no whole number of pixels when the shorter one is SIDE


def write_photographs(folder: Path, *sizes: tuple[int, int]) -> Path:
    """CLASS/WIDTHxHEIGHT.jpg and .png, a class for each photograph."""
    for number, name in enumerate(PHOTOGRAPHS):
        room = folder / Path(name).stem
        room.mkdir(parents=True)
        for width, height in sizes:
            rng = np.random.default_rng(number)
            tile = cut(photograph(name), Cut((width, height), min_crop=190, seed=0), rng)
            tile.save(room / f"{width}x{height}.jpg", quality=QUALITY)
            tile.save(room / f"{width}x{height}.png")
    return folder
