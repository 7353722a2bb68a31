"""Cuts the benchmarks' data from photographs that scikit-image ships, in ten class folders.

    python benchmarks/make_data.py [FOLDER]

Sets: `s` is 20,000 JPEGs of 128x128, `l` 4,000 of 500x375. `s.npy` is what `s` decodes to; `s.colours.npy` and
`l.colours.npy` are the mean colours of all samples, by which the comparison recognises them. What is there already is
kept. The crops follow from a fixed seed; the bytes also depend on Pillow's version. With FOLDER, set `s` goes there.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image

IMAGES: Final = 20_000
DATA: Final = Path(__file__).resolve().parent / "data"
DEFAULT_FOLDER: Final = DATA / "s"
QUALITY: Final = 90
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


@dataclass(frozen=True, slots=True)
class Cut:
    """How images of one set are cut: tiles of `size` (width, height), from crops at least `min_crop` pixels high.

    A smaller crop would be blown up into a blur, which decodes too easily.
    """

    size: tuple[int, int]
    min_crop: int
    seed: int


SMALL: Final = Cut(size=(128, 128), min_crop=64, seed=20_000)
LARGE: Final = Cut(size=(500, 375), min_crop=250, seed=4_000)
LARGE_IMAGES: Final = 4_000


def photograph(name: str) -> Image.Image:
    """One of scikit-image's photographs in RGB. Exits when scikit-image is not installed."""
    found = importlib.util.find_spec("skimage")
    if found is None or found.origin is None:
        sys.exit("make_data needs scikit-image: run  scripts/test  once, or  pip install scikit-image")
    with Image.open(Path(found.origin).parent / "data" / name) as picture:
        return picture.convert("RGB")


def cut(picture: Image.Image, how: Cut, rng: np.random.Generator) -> Image.Image:
    """A tile of a random place, scale and handedness, in the proportions of `how.size`, RGB."""
    width, height = how.size
    room = min(picture.height, picture.width * height // width)
    side = int(rng.integers(how.min_crop, room + 1))  # the crop's height
    crop = (side * width // height, side)
    left, top = (int(rng.integers(0, whole - part + 1)) for whole, part in zip(picture.size, crop, strict=True))
    box = (left, top, left + crop[0], top + crop[1])
    tile = picture.resize(how.size, Image.Resampling.LANCZOS, box=box, reducing_gap=2.0)
    return tile.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.integers(2) else tile


def make(folder: Path, images: int = IMAGES, how: Cut = SMALL) -> int:
    """Writes `images` JPEGs under `folder`, unless it exists. Returns the bytes of all files together."""
    if not folder.exists():
        unfinished = folder.with_name(f"{folder.name}.unfinished")
        rng = np.random.default_rng(how.seed)
        for name in PHOTOGRAPHS:
            picture, room = photograph(name), unfinished / Path(name).stem
            room.mkdir(parents=True, exist_ok=True)
            for number in range(images // len(PHOTOGRAPHS)):
                cut(picture, how, rng).save(room / f"{number:05}.jpg", quality=QUALITY)
        unfinished.rename(folder)
    return sum(file.stat().st_size for file in folder.glob("*/*.jpg"))


def files(folder: Path) -> list[Path]:
    """The images of a set in the order of their ids: by the bytes of `class/file`."""
    return sorted(folder.glob("*/*.jpg"), key=lambda file: file.relative_to(folder).as_posix().encode())


def decoded(file: Path) -> npt.NDArray[np.uint8]:
    """Uint8 (H, W, 3)."""
    with Image.open(file) as picture:
        return np.asarray(picture.convert("RGB"))


def make_array(folder: Path) -> Path:
    """Writes the decoded images of `folder`, all of one size, as uint8 (n, H, W, 3), unless the file exists.

    Returns its path, which is that of the folder with the suffix .npy.
    """
    array = folder.with_suffix(".npy")
    if array.exists():
        return array
    paths, unfinished = files(folder), array.with_name(f"unfinished.{array.name}")
    shape = (len(paths), *decoded(paths[0]).shape)
    images = np.lib.format.open_memmap(unfinished, mode="w+", dtype=np.uint8, shape=shape)
    for number, path in enumerate(paths):
        images[number] = decoded(path)
    images.flush()
    unfinished.rename(array)
    return array


def make_colours(folder: Path, colours: Path) -> None:
    """Writes each image's mean red, green and blue, as a .npy of float32 (n, 3), unless it exists."""
    if not colours.exists():
        means = [decoded(path).reshape(-1, 3).mean(axis=0, dtype=np.float32) for path in files(folder)]
        unfinished = colours.with_name(f"unfinished.{colours.name}")
        np.save(unfinished, np.stack(means))
        unfinished.rename(colours)


def make_all(data: Path, small: int = IMAGES, large: int = LARGE_IMAGES) -> None:
    """Both sets, the decoded array of the small one, and the colours of both, under `data`."""
    for name, images, how in (("s", small, SMALL), ("l", large, LARGE)):
        make(data / name, images, how)
        make_colours(data / name, data / f"{name}.colours.npy")
    make_array(data / "s")


def main() -> None:
    if len(sys.argv) > 1:
        folders = [Path(sys.argv[1])]
        make(folders[0])
    else:
        folders = [DATA / "s", DATA / "l"]
        make_all(DATA)
    for folder in folders:
        sizes = [file.stat().st_size for file in files(folder)]
        print(f"{folder}: {len(sizes)} images, {sum(sizes) / len(sizes) / 1000:.1f} kB on average")


if __name__ == "__main__":
    main()
