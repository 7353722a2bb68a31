"""Mistakes in a transform, a program of the user's."""

from __future__ import annotations

from functools import partial
from typing import Final

from mistake import GOOD, in_train

TRANSFORMED: Final = GOOD + '    transform: "augment:flip"\n'

MASKED: Final = """\
streams:
  train:
    source: {kind: table, path: all.csv, root: data}
    labels: {angle: float}
    images:
      photo: {from: path, size: [32, 32]}
      grey: {from: path, size: [8, 8], mode: L}
    transform: "augment:flip"
    batch_size: 4
"""

in_transform = partial(in_train, config=TRANSFORMED)

OF_TRANSFORMS: Final = (
    in_transform(
        "named a transform that does not exist",
        files={"augmentation.py": "def flip(image, labels, rng):\n    return image[:, ::-1], labels\n"},
        says="6: transform: there is no module 'augment' in '…' or on Python's path; did you mean 'augmentation'?",
        do=(
            "Use the name of the module's file, without .py. The file must be next to the configuration, or the "
            "module must be installed."
        ),
    ),
    in_transform(
        "returned a float image from a transform",
        files={"augment.py": "def flip(image, labels, rng):\n    return image[:, ::-1] / 255, labels\n"},
        says=(
            "6: transform: transform at augment.py:1: it returns an image of float64 (32, 32, 3); it must "
            "return uint8 (32, 32, 3)"
        ),
        do=(
            "Return uint8 pixels from 0 to 255, in the stream's size. The key `normalize` normalizes them later, in "
            "the model."
        ),
    ),
    in_transform(
        "wrote a transform that takes random numbers from elsewhere than rng",
        files={
            "augment.py": (
                "import random\n\n\ndef flip(image, labels, rng):\n"
                "    return (image[:, ::-1] if random.random() < 0.5 else image), labels\n"
            )
        },
        says=(
            "6: transform: transform at augment.py:4: it returned two different results for the same image: "
            "take random numbers only from rng, and keep no state from one call to the next"
        ),
        do=(
            "Take random numbers from rng. They depend only on the sample and the epoch, so every worker makes the "
            "same image."
        ),
    ),
    in_transform(
        "returned one image where a sample has several",
        config=MASKED,
        files={"augment.py": "def flip(images, labels, rng):\n    return images['photo'][:, ::-1], labels\n"},
        says=(
            "8: transform: transform at augment.py:1: it returns images as an array of uint8 (32, 32, 3); it must "
            "return a dict of 'photo', 'grey'"
        ),
        do="Return a dict with all images: `{name: image[:, ::-1] for name, image in images.items()}, labels`.",
    ),
    in_transform(
        "left an image out of what a transform returns",
        config=MASKED,
        files={"augment.py": "def flip(images, labels, rng):\n    return {'photo': images['photo']}, labels\n"},
        says=(
            "8: transform: transform at augment.py:1: it returns a dict without image 'grey'; it must return 'photo', "
            "'grey'"
        ),
        do="Return every image, also one that stays as it is: `images | {'photo': photo}, labels`.",
    ),
)
