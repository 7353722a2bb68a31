"""Draws tiles as a satellite measures them: red, green, blue and near infrared, 16 bits each, in planes of a TIFF.

    python make_data.py [FOLDER]    # writes train and validation there, with a folder for each kind of ground

A meadow and an artificial lawn look the same to the eye: only the infrared, which leaves reflect, tells them apart.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tifffile
from PIL import Image

SIDE = 32
GROUNDS = {  # reflectance of red, green, blue and near infrared, in ten-thousandths
    "lawn": (900, 1500, 800, 1700),
    "meadow": (900, 1500, 800, 4200),
    "sand": (3200, 2700, 2000, 3600),
    "water": (500, 800, 1100, 250),
}

Tile = npt.NDArray[np.uint16]


def draw_tile(ground: str, rng: np.random.Generator) -> Tile:
    """Returns one tile (4, 32, 32): patches of light and shade, and the noise of the sensor."""
    coarse = Image.fromarray(rng.normal(1, 0.22, (5, 5)).astype(np.float32))
    light = np.asarray(coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC))
    levels = np.array(GROUNDS[ground])[:, None, None] * rng.uniform(0.75, 1.3) * light
    return np.clip(levels + rng.normal(0, 90, (4, SIDE, SIDE)), 0, 10_000).astype(np.uint16)


def main(folder: Path) -> None:
    """Writes GROUND/N.tif for both parts."""
    for part, count in (("train", 40), ("validation", 12)):
        rng = np.random.default_rng(len(part))
        for ground in GROUNDS:
            (folder / part / ground).mkdir(parents=True, exist_ok=True)
            for number in range(count):
                path = folder / part / ground / f"{number:03}.tif"
                options = {"planarconfig": "separate", "compression": "zlib", "predictor": True}
                tifffile.imwrite(
                    path, draw_tile(ground, rng), photometric="rgb", extrasamples=["unspecified"], **options
                )


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
