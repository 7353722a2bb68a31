"""An Albumentations pipeline. It draws from a generator of its own, which is seeded anew for every sample."""

from __future__ import annotations

from typing import Any

import albumentations as A  # noqa: N812 - its users know it by this name
import numpy as np
import numpy.typing as npt

Image = npt.NDArray[np.uint8]
Labels = dict[str, Any]

_PIPELINE = A.Compose(
    [
        A.HorizontalFlip(p=0.5),
        A.Affine(rotate=(-10, 10), scale=(0.9, 1.1), p=0.7),
        A.RandomBrightnessContrast(p=0.5),
        A.GaussNoise(p=0.2),
    ]
)


def augment(image: Image, labels: Labels, rng: np.random.Generator) -> tuple[Image, Labels]:
    """The same for a sample and an epoch in every worker, since what the pipeline draws follows from `rng`."""
    _PIPELINE.set_random_seed(int(rng.integers(1 << 31)))
    return _PIPELINE(image=image)["image"], labels
