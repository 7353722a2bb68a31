"""Mistakes in what the configuration names: HDF5 files."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np
from mistake import Mistake, in_train

HDF5: Final = """\
streams:
  train:
    source: {kind: hdf5, path: samples.h5, images: /training_samples}
    labels: {angle: {type: float, from: /angles}}
    batch_size: 4
"""
PIXELS: Final = np.arange(8 * 12, dtype=np.uint8).reshape(8, 2, 2, 3)
ANGLES: Final = np.linspace(-1, 1, 8)


def written(pixels: Any = PIXELS, angles: Any = ANGLES) -> Callable[[Path], None]:
    """Writes both arrays into one file."""

    def write(place: Path) -> None:
        with h5py.File(place / "samples.h5", "w") as file:
            file["training_samples"], file["angles"] = pixels, angles

    return write


def truncate(place: Path) -> None:
    written()(place)
    os.truncate(place / "samples.h5", 1000)


def linked_in_a_circle(place: Path) -> None:
    with h5py.File(place / "samples.h5", "w") as file:
        file["training_samples"] = h5py.SoftLink("/training_samples")


in_hdf5 = partial(in_train, config=HDF5, prepare=written())
OF_HDF5: Final = (
    Mistake(
        "checked an HDF5 file without the library for it",
        without="h5py",
        config=HDF5,
        prepare=written(),
        command="streamd check --config config.yaml",
        status=1,
        says=(
            "streamd: a source of kind hdf5 needs h5py, which is not installed: run  pip install 'streamd-loader[hdf5]'"
        ),
        do="Run the pip command.",
    ),
    in_hdf5(
        "named an array that an HDF5 file does not have",
        config=HDF5.replace("/training_samples", "/train_samples"),
        says=(
            "3: source.images: there is no array '/train_samples' in '…/samples.h5'; it has /training_samples (uint8 "
            "(8, 2, 2, 3)), /angles (float64 (8,)); did you mean '/training_samples'?"
        ),
        do="Use the name that the message suggests.",
    ),
    in_hdf5(
        "wrote fractions into an HDF5 file",
        prepare=written((PIXELS / 95).astype(np.float32)),
        says=(
            "3: source.images: /training_samples of '…/samples.h5' holds float32 (8, 2, 2, 3); found values "
            "from 0 to 1 in the first 8 images, but pixels are from 0 to 255: write range: [0, 1] if 0 is "
            "black and 1 is white in all images"
        ),
        do="Add `range: [0, 1]` to the source: numbers are scaled to 0-255 when they are read.",
    ),
    in_hdf5(
        "appended to the images of an HDF5 file, and not to its labels",
        prepare=written(angles=ANGLES[:7]),
        says=(
            "4: labels.angle.from: /angles of '…/samples.h5' has 7 rows, but there are 8 images; it needs one "
            "row per image, in the order of the images: correct the rows, or the path of the images"
        ),
        do="Write both in the same loop.",
    ),
    in_hdf5(
        "copied only part of an HDF5 file",
        prepare=truncate,
        says="3: source.path: '…/samples.h5': it is truncated; copy it again, or write it again",
        do=(
            "Copy it again. A file can also be truncated because the program that wrote it was killed: `h5clear "
            "--status` may repair such a file."
        ),
    ),
    in_hdf5(
        "named a link of an HDF5 file that leads to itself",
        prepare=linked_in_a_circle,
        says=(
            "3: source.images: '/training_samples' cannot be followed in '…/samples.h5': Special link "
            "traversal failed (too many links); name an array that is not a link, or fix the link: a link must "
            "not point to itself"
        ),
        do="Name the array itself, or write the file again.",
    ),
)
