"""Mirrors half of the frames of a drive, and steers the other way in them: what bent to the left bends to the right."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Image = npt.NDArray[np.uint8]
Labels = dict[str, Any]


def mirror(image: Image, labels: Labels, rng: np.random.Generator) -> tuple[Image, Labels]:
    """`angle` is 0 straight ahead, and negative to the left."""
    if rng.integers(2):
        return image[:, ::-1], labels | {"angle": -labels["angle"]}
    return image, labels
