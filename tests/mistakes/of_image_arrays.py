"""Mistakes in several images a sample that are arrays."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np
from mistake import Mistake, in_train

MASKED: Final = """\
streams:
  train:
    source: {kind: npy, path: photos.npy}
    labels: {}
    images:
      photo: {size: [32, 32], resize: random_crop}
      mask: {from: masks.npy, like: photo, mode: index}
    batch_size: 4
"""
IN_HDF5: Final = MASKED.replace("{kind: npy, path: photos.npy}", "{kind: hdf5, path: scans.h5}").replace(
    "from: masks.npy, ", ""
)
PHOTOS: Final = np.zeros((8, 40, 60, 3), np.uint8)
MASKS: Final = np.zeros((8, 40, 60), np.int64)


def saved(masks: Any = MASKS) -> Callable[[Path], None]:
    """Puts photos and masks into their files."""

    def save(place: Path) -> None:
        np.save(place / "photos.npy", PHOTOS)
        np.save(place / "masks.npy", masks)
        with h5py.File(place / "scans.h5", "w") as file:
            file["photo"], file["masks"] = PHOTOS, MASKS

    return save


def _build_large_masks() -> Any:
    masks = MASKS.copy()
    masks[3, 0, 0] = 300
    return masks


in_masks = partial(in_train, config=MASKED, prepare=saved())
OF_IMAGE_ARRAYS: Final = (
    in_masks(
        "saved fewer masks than photos",
        prepare=saved(MASKS[:7]),
        says=(
            "7: images.mask.from: '…/masks.npy' has 7 rows, but there are 8 images; it needs one row per image, in "
            "the order of the images: correct the rows, or the path of the images"
        ),
        do="Save one mask for each photo, in the same order.",
    ),
    in_masks(
        "saved masks as colours",
        prepare=saved(PHOTOS),
        says=(
            "7: images.mask.from: '…/masks.npy' holds uint8 (8, 40, 60, 3); class numbers have the shape (n, height, "
            "width) or (n, height, width, 1): one number a pixel"
        ),
        do="Save the number of each pixel's class, and not its colour.",
    ),
    in_masks(
        "saved masks as fractions",
        prepare=saved(MASKS.astype(np.float32)),
        says=(
            "7: images.mask.from: '…/masks.npy' holds float32 (8, 40, 60); class numbers are whole numbers: save them "
            "as uint8 or uint16"
        ),
        do="Save `masks.astype(np.uint8)`; soft masks are images of `mode: raw`.",
    ),
    in_masks(
        "gave a band other channels than its array has",
        config=MASKED.replace("like: photo, mode: index", "size: [8, 8], mode: raw, channels: 4, dtype: uint16"),
        prepare=saved(np.zeros((8, 9, 9, 2), np.uint16)),
        says=(
            "7: images.mask.from: '…/masks.npy' holds uint16 (8, 9, 9, 2), but image has channels: 4; write the "
            "number that the array has"
        ),
        do="Write `channels: 2`.",
    ),
    in_masks(
        "named no array for a mask",
        config=MASKED.replace("from: masks.npy, ", ""),
        says="7: images.mask.from: is missing, and photo is the source's own picture already; add from",
        do="Add `from: masks.npy`.",
    ),
    in_masks(
        "used a pattern of files beside arrays",
        config=MASKED.replace("masks.npy", "'{stem}.png'"),
        says="7: images.mask.from: rows of arrays have no files beside them; name a .npy file, and no pattern",
        do="Save the masks as an array, too, or serve the photos from files.",
    ),
    in_masks(
        "named no array of an HDF5 file by an image's name",
        config=IN_HDF5,
        says=(
            "7: images.mask.from: there is no array '/mask' in '…/scans.h5'; it has /masks (int64 (8, 40, 60)), "
            "/photo (uint8 (8, 40, 60, 3)); did you mean '/masks'?"
        ),
        do="Add `from: /masks`, or give the image the name of the array.",
    ),
    Mistake(
        "saved a class number that a mask does not hold",
        printed=True,
        says=(
            "train: 1 unreadable file: photos.npy[3]: mask: it holds the class number 300, and uint8 holds 0 to 255; "
            "use dtype: uint16"
        ),
        do="Write `dtype: uint16`, or correct the array.",
        config=MASKED,
        command="streamd check --config config.yaml",
        status=1,
        prepare=saved(_build_large_masks()),
    ),
)
