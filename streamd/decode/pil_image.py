"""An image as Pillow has it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image


def build_pil_image(pixels: npt.NDArray[np.uint8]) -> Image.Image:
    """`pixels`, uint8 (height, width, 1 or 3), as a picture of mode L or RGB; a copy."""
    return Image.fromarray(pixels if pixels.shape[2] > 1 else np.ascontiguousarray(pixels[:, :, 0]))
