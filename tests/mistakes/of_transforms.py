"""Mistakes in a transform, a program of the user's."""

from __future__ import annotations

from functools import partial
from typing import Final

from mistake import GOOD, in_train

TRANSFORMED: Final = GOOD + '    transform: "augment:flip"\n'

in_transform = partial(in_train, config=TRANSFORMED)

OF_TRANSFORMS: Final = (
    in_transform(
        "named a transform that is nowhere",
        files={"augmentation.py": "def flip(image, labels, rng):\n    return image[:, ::-1], labels\n"},
        says="6: transform: there is no module 'augment' in '…' or on Python's path; did you mean 'augmentation'?",
        do="Name the module as its file is called, without .py; it lies beside the configuration, or is installed.",
    ),
    in_transform(
        "gave back an image of floats from a transform",
        files={"augment.py": "def flip(image, labels, rng):\n    return image[:, ::-1] / 255, labels\n"},
        says=(
            "6: transform: transform at augment.py:1: an image of float64 (32, 32, 3) comes back; uint8 (32, 32, 3) is "
            "wanted"
        ),
        do="Give back uint8 in 0-255, of the stream's size; normalize: does the rest in the model.",
    ),
    in_transform(
        "drew by chance from elsewhere than rng in a transform",
        files={
            "augment.py": (
                "import random\n\n\ndef flip(image, labels, rng):\n"
                "    return (image[:, ::-1] if random.random() < 0.5 else image), labels\n"
            )
        },
        says=(
            "6: transform: transform at augment.py:4: the same image comes back as another one the second time: draw "
            "by chance from rng alone, and keep nothing from one call to the next"
        ),
        do="Draw from rng: what it gives follows from sample and epoch, so that every worker makes the same.",
    ),
)
