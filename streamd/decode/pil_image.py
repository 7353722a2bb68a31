"""An image array as a Pillow image."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image


def build_pil_image(pixels: npt.NDArray[np.uint8]) -> Image.Image:
    """Copies `pixels`, uint8 (height, width, 1 or 3), into a picture of mode L or RGB."""
    return Image.fromarray(pixels if pixels.shape[2] > 1 else np.ascontiguousarray(pixels[:, :, 0]))
