"""Mistakes in masks and other images beside a picture, and in views."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from mistake import GOOD, TABLE, Mistake, in_train
from PIL import Image

CHECK: Final = "streamd check --config config.yaml"
_IMAGE: Final = "image: {size: [32, 32]}"
MASKED: Final = GOOD.replace(
    _IMAGE,
    "labels: {}\n    images:\n      photo: {size: [32, 32], resize: random_crop}\n"
    "      mask: {from: '{dir}/{stem}.png', root: masks, like: photo, mode: index}",
)
BANDS: Final = MASKED.replace("like: photo, mode: index", "size: [32, 32], mode: raw, channels: 4, dtype: uint16")
VIEWED: Final = GOOD.replace(_IMAGE, "image: {size: [32, 32], resize: random_crop, views: 2}")
BOXED: Final = TABLE.replace("{angle: float}", "{boxes: {type: boxes, max: 2}}").replace(
    _IMAGE, "image: {size: [32, 32], resize: random_crop, views: 2}"
)


def beside_photos(change: Callable[[Any], Any] | None = None) -> Callable[[Path], None]:
    """Saves a mask for each photo, of its size and with two classes; that of dog/0001.jpg is changed."""

    def save(place: Path) -> None:
        for photo in sorted((place / "data").rglob("*.jpg")):
            with Image.open(photo) as picture:
                numbers = np.zeros((picture.height, picture.width), np.uint8)
            numbers[::2] = 1
            changed = change is not None and photo.match("dog/0001.jpg")
            path = place / "masks" / photo.parent.name / f"{photo.stem}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(change(numbers) if changed and change else numbers).save(path)

    return save


def _lose_mask(place: Path) -> None:
    beside_photos()(place)
    (place / "masks/dog/0001.png").unlink()


found_by_check = partial(Mistake, printed=True, config=MASKED, command=CHECK, status=1)
OF_MASKS: Final = (
    found_by_check(
        "saved a mask in another size than its photo",
        says=(
            "train: mask: 1 mask has other proportions than photo, such as in dog/0001.jpg: … where photo has …, "
            "height x width, and would be stretched out of place; save each with the height and width of its photo"
        ),
        do="Turn or crop the mask as its photo was; a mask that is smaller in proportion is no mistake.",
        prepare=beside_photos(lambda numbers: numbers[: len(numbers) // 2]),
    ),
    found_by_check(
        "did not let a mask follow its photo",
        config=MASKED.replace("like: photo,", "size: [32, 32],"),
        says="train: mask shows another part of the picture than photo; add like: photo to images.mask",
        do="Add `like: photo`, in place of `size` and `resize`.",
        prepare=beside_photos(),
    ),
    in_train(
        "lost the mask of a photo",
        config=MASKED,
        says=(
            "7: images.mask.from: 1 of 8 files that the pattern names is not in '…/masks': 'dog/0001.png'; add the "
            "missing file, or remove the samples"
        ),
        do="Add the mask, or move its photo away.",
        prepare=_lose_mask,
    ),
    found_by_check(
        "saved a mask with more classes than its dtype holds",
        says=(
            "train: 1 unreadable file: dog/0001.jpg: mask: it holds the class number 300, and uint8 holds 0 to 255; "
            "use dtype: uint16"
        ),
        do="Write `dtype: uint16`, or correct the mask.",
        prepare=beside_photos(lambda numbers: numbers.astype(np.uint16) * 300),
    ),
    found_by_check(
        "saved a mask in colours",
        says=(
            "train: 1 unreadable file: dog/0001.jpg: mask: a mask of mode RGB: class numbers need one channel; save it "
            "with a palette (P) or as grey (L)"
        ),
        do="Save the number of each pixel's class; a palette shows it in colour.",
        prepare=beside_photos(lambda numbers: np.stack([numbers] * 3, axis=2)),
    ),
    found_by_check(
        "expected other channels than an image has",
        config=BANDS,
        says="train: 8 unreadable files, the first: cat/0000.jpg: mask: it holds …, but the stream expects …: …",
        do="Write the `channels` and `dtype` that the message names.",
        prepare=beside_photos(),
    ),
    in_train(
        "wanted views without random crops",
        config=VIEWED.replace(", resize: random_crop", ""),
        says=("4: image.views: makes equal views; add resize: random_crop, or a transform that draws from its rng"),
        do="Add `resize: random_crop`.",
    ),
    in_train(
        "wanted boxes of an image with views",
        config=BOXED,
        says=(
            "4: labels.boxes.of: image has views, and boxes lie in one picture; name an image without views, or leave "
            "the label out"
        ),
        do="Give the boxes an image of their own, without views, or leave them out.",
    ),
    in_train(
        "wanted a cache of views",
        config=VIEWED + "    cache: {path: cache, max: 1GiB}\n",
        says=("6: cache: would keep one random crop of each sample forever; remove it, or use resize: crop"),
        do="Remove `cache`.",
    ),
    Mistake(
        "packed a stream of views",
        config=VIEWED,
        says=(
            "streamd: streams.train.image.views: a pack of views is not in this version; pack a stream of its own "
            "without views"
        ),
        do="Pack a stream without `views`: views are made of the pack as of the files.",
        command="streamd pack --config config.yaml train packed --format tar",
    ),
)
