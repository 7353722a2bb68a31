"""Pictures of other makers, out of Debian's packages: served by streamd, and compared with the libraries' own pixels.

`scripts/test --all` and `scripts/docs foreign` unpack the packages into .venv/pictures. foreign_pictures.csv beside
this lists the pictures, with their digests.
"""

from __future__ import annotations

import csv
import hashlib
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
import pytest
import tifffile
from PIL import Image

import streamd
from streamd.client.batch import Batch

Pixels = npt.NDArray[Any]

PICTURES: Final = Path(sys.prefix) / "pictures"  # a folder for each package
LIST: Final = Path(__file__).with_name("foreign_pictures.csv")
PACKAGES: Final = {"x-image": "golang-golang-x-image-dev", "go": "golang-1.19-src"}
SUFFIXES: Final = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp", ".gif"})
PLAIN_MODES: Final = frozenset({"1", "L", "P", "RGB", "CMYK"})
NUMBER_MODES: Final = frozenset({"1", "L", "P"})
SPREAD_LEVELS: Final = {"L;2": 85, "L;4": 17}
DEEP_PNGS: Final = frozenset({"I;16B", "RGB;16B", "RGBA;16B"})  # OpenCV makes four channels of two
MEMORY: Final = "256MiB"
# Pillow reads the pixels of these at another depth than the level that is transparent, and finds that level nowhere or
# elsewhere; streamd scales both.
KNOWN_DIFFERENT: Final = {
    "image/png/testdata/pngsuite/ftbbn0g04.png": "Pillow scales pixels of 4 bits to 8, but not the transparent level",
    "image/png/testdata/pngsuite/ftbwn0g16.png": "Pillow cuts levels of 16 bits at 255, where streamd scales them",
}


@dataclass(frozen=True, order=True, slots=True)
class ForeignPicture:
    """A picture of a package: its path below the package's folder, and the BLAKE2 digest of its bytes."""

    folder: str
    name: str
    digest: str

    @property
    def path(self) -> Path:
        return PICTURES / self.folder / self.name


class Form(NamedTuple):
    """How a picture is served: pictures of one form share a stream."""

    mode: str
    height: int
    width: int
    channels: int
    dtype: str

    def configure(self) -> dict[str, Any]:
        """The keys of the image: the picture's own size, so that nothing is resized."""
        image: dict[str, Any] = {"size": [self.height, self.width], "mode": self.mode}
        if self.mode == "raw":
            return image | {"channels": self.channels, "dtype": self.dtype}
        return image if self.mode == "index" else image | {"exact": True}


class Expected(NamedTuple):
    """Pixels as a library reads them."""

    form: Form
    pixels: Pixels
    library: str


@dataclass(slots=True)
class Outcome:
    """What became of a picture: the modes with the library whose pixels they equal, and what was not so."""

    equal: dict[str, str] = field(default_factory=dict)
    different: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)  # mode: the sentence of streamd

    @property
    def is_equal(self) -> bool:
        """Whether every mode has the library's pixels, so that the picture counts."""
        return bool(self.equal) and not self.different and not self.refused


def list_pictures() -> list[ForeignPicture]:
    """The listed pictures; the test is skipped where the packages are not unpacked."""
    if not all((PICTURES / folder).is_dir() for folder in PACKAGES):
        pytest.skip("there are no pictures of other makers: scripts/test --all brings them, from Debian's packages")
    with LIST.open(newline="", encoding="utf-8") as file:
        return [ForeignPicture(**row) for row in csv.DictReader(file)]


def find_pictures() -> list[ForeignPicture]:
    """All pictures of the unpacked packages."""
    paths = [path for folder in PACKAGES for path in sorted((PICTURES / folder).rglob("*"))]
    files = [path for path in paths if path.suffix in SUFFIXES and path.is_file()]
    return sorted(_describe_picture(path) for path in files)


def _describe_picture(path: Path) -> ForeignPicture:
    folder, _, name = path.relative_to(PICTURES).as_posix().partition("/")
    return ForeignPicture(folder, name, compute_digest(path))


def compute_digest(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


def read_expected(path: Path) -> list[Expected]:
    """The pixels of a picture in each mode that suits its kind, as the library of its format reads them."""
    try:
        with Image.open(path) as picture:
            stored = picture.tile[0].args if picture.format == "PNG" else None
            picture.load()
    except (OSError, SyntaxError):  # damaged: streamd has to refuse it
        return [_expect("RGB", np.zeros((8, 8, 3), np.uint8), "Pillow")]
    found = []
    if picture.has_transparency_data:
        found.append(_expect("RGBA", np.asarray(picture.convert("RGBA")), "Pillow"))
    elif picture.mode in PLAIN_MODES:
        found.append(_expect("RGB", np.asarray(picture.convert("RGB")), "Pillow"))
    if picture.mode in NUMBER_MODES and picture.format not in {"JPEG", "WEBP"}:
        # Pillow spreads levels of few bits over 8.
        scale = SPREAD_LEVELS.get(str(stored), 1)
        found.append(_expect("index", np.asarray(picture).astype(np.uint8) // np.uint8(scale), "Pillow"))
    if picture.format == "TIFF":
        found.append(_expect("raw", tifffile.imread(path), "tifffile"))
    elif stored in DEEP_PNGS and "transparency" not in picture.info:
        found.append(_expect("raw", _read_deep_png(path), "OpenCV"))
    return found


def _read_deep_png(path: Path) -> Pixels:
    numbers = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
    assert numbers is not None, path
    return numbers if numbers.ndim == 2 else numbers[:, :, [2, 1, 0, 3][: numbers.shape[2]]]  # it gives blue first


def _expect(mode: str, pixels: Pixels, library: str) -> Expected:
    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    pixels = pixels.astype(np.uint8) if pixels.dtype == bool else pixels
    return Expected(Form(mode, pixels.shape[0], pixels.shape[1], channels, pixels.dtype.name), pixels, library)


def serve_pictures(pictures: Iterable[ForeignPicture], place: Path) -> dict[ForeignPicture, Outcome]:
    """Serves each picture in each mode that suits it, by one daemon, and compares what arrives."""
    streams: dict[Form, list[tuple[ForeignPicture, Expected]]] = defaultdict(list)
    outcomes = {}
    for picture in pictures:
        outcomes[picture] = Outcome()
        for expected in read_expected(picture.path):
            streams[expected.form].append((picture, expected))
    config = {
        f"stream-{number}": _configure_stream(form, [each for each, _ in members], place / str(number))
        for number, (form, members) in enumerate(streams.items())
    }
    with streamd.local({"memory": MEMORY, "workers": 1, "streams": config}) as client:
        for name, members in zip(config, streams.values(), strict=True):
            with client.subscribe(name, epochs=1) as stream:
                (batch,) = list(stream)
                _compare_batch(batch, members, outcomes)
                del batch
    return outcomes


def _configure_stream(form: Form, pictures: list[ForeignPicture], folder: Path) -> dict[str, Any]:
    folder.mkdir()
    for number, picture in enumerate(pictures):
        shutil.copy(picture.path, folder / f"{number:03}{picture.path.suffix}")
    return {
        "source": {"kind": "folder", "path": str(folder)},
        "labels": {},
        "image": form.configure(),
        "batch_size": len(pictures),
        "shuffle": "none",
        "bad_samples": {"policy": "mask", "max_fraction": 1.0},
    }


def _compare_batch(
    batch: Batch, members: list[tuple[ForeignPicture, Expected]], outcomes: dict[ForeignPicture, Outcome]
) -> None:
    refused = {bad.row: bad.reason for bad in batch.bad}
    for row, (picture, expected) in enumerate(members):
        outcome, mode = outcomes[picture], expected.form.mode
        served = batch.images[row].reshape(expected.pixels.shape)
        if row in refused:
            outcome.refused[mode] = refused[row]
        elif np.array_equal(served, expected.pixels):
            outcome.equal[mode] = expected.library
        else:
            off = np.abs(served.astype(np.int64) - expected.pixels)
            outcome.different[mode] = f"{np.mean(off > 0):.2%} of its levels, by {off.max()} at most"
