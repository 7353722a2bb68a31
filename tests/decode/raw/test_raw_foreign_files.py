"""Files of other makers, as installed packages ship them: raw numbers are those that their format's library reads."""

from __future__ import annotations

import site
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest
import tifffile
from PIL import Image

from streamd.decode.raw import RawForm, read_raw_picture

PACKAGES: Final = ("matplotlib", "skimage", "networkx", "playwright", "scipy", "importlinter", "numpy")
PLAIN_MODES: Final = frozenset({"L", "LA", "RGB", "RGBA"})  # in which Pillow changes no number
ARRAY_TYPES: Final = frozenset({"uint8", "uint16", "float32"})


def _list_files(suffix: str) -> list[Path]:
    folders = [Path(base) / name for base in site.getsitepackages() for name in PACKAGES]
    return sorted(chain.from_iterable(folder.rglob(f"*{suffix}") for folder in folders))


def _read(path: Path, expected: npt.NDArray[Any]) -> npt.NDArray[Any]:
    form = RawForm(expected.shape[2], expected.dtype.name)
    return read_raw_picture(path.read_bytes(), form).numbers


def test_png_files_give_the_levels_that_pillow_reads() -> None:
    compared = 0
    for path in _list_files(".png"):
        with Image.open(path) as picture:
            if picture.mode not in PLAIN_MODES or picture.tile[0].args != picture.mode:
                continue
            expected = np.asarray(picture).reshape(picture.height, picture.width, -1)
        assert np.array_equal(_read(path, expected), expected), path
        compared += 1
    assert compared >= 30


def test_the_pages_of_a_tiff_are_those_that_tifffile_reads() -> None:
    (path,) = (path for path in _list_files(".tif") if path.name == "multipage.tif")
    with tifffile.TiffFile(path) as file:
        expected = np.stack([page.asarray() for page in file.pages], axis=2)
    assert np.array_equal(_read(path, expected), expected)


@pytest.mark.filterwarnings("ignore:Reading")
def test_npy_files_give_what_numpy_loads() -> None:
    compared = 0
    for path in _list_files(".npy"):
        try:
            expected = np.load(path)
        except ValueError:  # Python objects, which nothing of ours loads
            continue
        if expected.ndim == 2 and expected.dtype.name in ARRAY_TYPES:
            assert np.array_equal(_read(path, expected[:, :, np.newaxis])[:, :, 0], expected), path
            compared += 1
        elif expected.ndim == 3 and expected.dtype.name in ARRAY_TYPES:
            assert np.array_equal(_read(path, expected), expected), path
            compared += 1
    assert compared >= 1
