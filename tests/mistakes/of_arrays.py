"""Mistakes in what the configuration names: arrays."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from mistake import GOOD, in_train

ARRAYS: Final = """\
streams:
  train:
    source: {kind: npy, path: x.npy}
    labels: {angle: {type: float, from: angles.npy}}
    batch_size: 4
"""
PIXELS: Final = np.arange(8 * 12, dtype=np.uint8).reshape(8, 2, 2, 3)
ANGLES: Final = np.linspace(-1, 1, 8)


def saved(pixels: Any = PIXELS, angles: Any = ANGLES) -> Callable[[Path], None]:
    """Puts both arrays into their files."""

    def save(place: Path) -> None:
        np.save(place / "x.npy", pixels)
        np.save(place / "angles.npy", angles)

    return save


def truncate(place: Path) -> None:
    saved()(place)
    path = place / "x.npy"
    path.write_bytes(path.read_bytes()[:-40])


in_arrays = partial(in_train, config=ARRAYS, prepare=saved())
OF_ARRAYS: Final = (
    in_arrays(
        "saved pixels as fractions",
        prepare=saved((PIXELS / 95).astype(np.float32)),
        says=(
            "3: source.path: '…/x.npy' holds float32 (8, 2, 2, 3); found values from 0 to 1 in the first 8 "
            "images, but pixels are from 0 to 255: write range: [0, 1] if 0 is black and 1 is white in all "
            "images"
        ),
        do="Add `range: [0, 1]` to the source: numbers are scaled to 0-255 when they are read.",
    ),
    in_arrays(
        "served grey arrays as colour",
        prepare=saved(PIXELS[..., 0]),
        says="2: image.mode: RGB has 3 channels, but the images in the arrays have 1; write mode: L",
        do="Add `image: {mode: L}`.",
    ),
    in_arrays(
        "asked for arrays in another size",
        config=f"{ARRAYS}    image: {{size: [32, 32]}}\n",
        says=(
            "6: image.size: the arrays hold images of 2x2, which are served as they are; write size: stored, and "
            "resize in the trainer's model, or save them resized"
        ),
        do="Resize in the model, or save arrays of the size you train on.",
    ),
    in_arrays(
        "named a column of image names, but no table",
        config=ARRAYS.replace("path: x.npy", "path: x.npy, names: file"),
        says=("3: source.names: is a column, but the source has no table; add table: FILE, or remove names:"),
        do="Name the table whose column it is.",
    ),
    in_arrays(
        "saved fewer labels than images",
        prepare=saved(angles=ANGLES[:7]),
        says=(
            "4: labels.angle.from: '…/angles.npy' has 7 rows, but there are 8 images; it needs one row per "
            "image, in the order of the images: correct the rows, or the path of the images"
        ),
        do="Save labels and images from the same list.",
    ),
    in_arrays(
        "copied only part of an array",
        prepare=truncate,
        says="3: source.path: '…/x.npy' is truncated: it has 184 of 224 bytes; copy or write it again",
        do="Copy it again.",
    ),
    in_arrays(
        "asked for a label that is in no table or array",
        config=ARRAYS.replace("{type: float, from: angles.npy}", "float"),
        says=(
            "4: labels.angle: no table has a column 'angle'; add table: FILE under source, or take the label from an "
            "array with from: FILE.npy"
        ),
        do="Say where the label is.",
    ),
    in_arrays(
        "had a row without a 1 in one-hot labels",
        config=ARRAYS.replace("type: float", "type: category"),
        prepare=saved(angles=np.eye(8, 4, dtype=np.uint8)),
        says=(
            "4: labels.angle: angles.npy[4] holds [0, 0, 0, 0], which contains 0 ones; a category needs exactly one 1 "
            "in each row: use type: tags for any number of classes per sample, or correct the row"
        ),
        do="Correct the row, or use type: tags.",
    ),
    in_arrays(
        "had soft labels where classes are wanted",
        config=ARRAYS.replace("type: float", "type: category"),
        prepare=saved(angles=np.full((8, 4), 0.25)),
        says=(
            "4: labels.angle: angles.npy[0] holds [0.25, 0.25, 0.25, 0.25]; several numbers per row give a "
            "class only if each is 0 or 1: use type: float for a vector or for soft labels, or correct the row"
        ),
        do="Use type: float.",
    ),
    in_arrays(
        "gave a sample a weight below 0",
        config=ARRAYS.replace("labels: {angle: {type: float, from: angles.npy}}", "weights: angles.npy"),
        says="4: weights: angles.npy[0] holds -1; the weight of a sample must be 0 or more: correct it",
        do="Correct the weights.",
    ),
    in_train(
        "named a column of weights for a folder",
        config=GOOD + "    weights: importance\n",
        says=(
            "6: weights: a folder has no column 'importance'; use np.save to save one number per sample, in "
            "the order of the images, and write weights: FILE.npy"
        ),
        do="Save the weights as an array, or use kind: table.",
    ),
)
