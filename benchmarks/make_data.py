"""Cuts the benchmarks' data from photographs that scikit-image ships: 20,000 JPEGs of 128x128, ten class folders.

    python benchmarks/make_data.py [FOLDER]

A set that is there already is kept. The crops follow from a fixed seed; the bytes also depend on Pillow's version.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image

IMAGES: Final = 20_000
SIDE: Final = 128  # pixels
QUALITY: Final = 90
SEED: Final = 20_000
MIN_CROP: Final = 64  # pixels; a smaller crop would be blown up into a blur, which decodes too easily
DEFAULT_FOLDER: Final = Path(__file__).resolve().parent / "data" / "s"
PHOTOGRAPHS: Final = (
    "astronaut.png",
    "camera.png",
    "chelsea.png",
    "coffee.png",
    "hubble_deep_field.jpg",
    "ihc.png",
    "moon.png",
    "motorcycle_left.png",
    "retina.jpg",
    "rocket.jpg",
)


def photograph(name: str) -> Image.Image:
    """One of scikit-image's photographs in RGB. Exits when scikit-image is not installed."""
    found = importlib.util.find_spec("skimage")
    if found is None or found.origin is None:
        sys.exit("make_data needs scikit-image: run  scripts/test  once, or  pip install scikit-image")
    with Image.open(Path(found.origin).parent / "data" / name) as picture:
        return picture.convert("RGB")


def cut(picture: Image.Image, rng: np.random.Generator) -> Image.Image:
    """A square of a random place, size and handedness, (SIDE, SIDE) RGB."""
    side = int(rng.integers(MIN_CROP, min(picture.size) + 1))
    left, top = (int(rng.integers(0, room - side + 1)) for room in picture.size)
    box = (left, top, left + side, top + side)
    tile = picture.resize((SIDE, SIDE), Image.Resampling.LANCZOS, box=box, reducing_gap=2.0)
    return tile.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.integers(2) else tile


def make(folder: Path, images: int = IMAGES) -> int:
    """Writes `images` JPEGs under `folder`, unless it exists. Returns the bytes of all files together."""
    if not folder.exists():
        unfinished = folder.with_name(f"{folder.name}.unfinished")
        rng = np.random.default_rng(SEED)
        for name in PHOTOGRAPHS:
            picture, room = photograph(name), unfinished / Path(name).stem
            room.mkdir(parents=True, exist_ok=True)
            for number in range(images // len(PHOTOGRAPHS)):
                cut(picture, rng).save(room / f"{number:05}.jpg", quality=QUALITY)
        unfinished.rename(folder)
    return sum(file.stat().st_size for file in folder.glob("*/*.jpg"))


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_FOLDER
    total_bytes = make(folder)
    files = sum(1 for _ in folder.glob("*/*.jpg"))
    print(f"{folder}: {files} images, {total_bytes / files / 1000:.1f} kB on average")


if __name__ == "__main__":
    main()
