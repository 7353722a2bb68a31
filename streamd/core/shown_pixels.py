"""Makes pictures of 8 bits of the numbers in a batch, for people to look at. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamd.core.spec import ImageSpec, PixelType

_COLOURS: Final = 3
_ALPHA: Final = 3  # the place of alpha among the channels of RGBA
_WHITE: Final = 255
_RANGES: Final[dict[PixelType, tuple[float, float]]] = {
    "uint8": (0.0, 255.0),
    "uint16": (0.0, 65535.0),
    "float32": (0.0, 1.0),
}


def get_number_range(image: ImageSpec) -> tuple[float, float]:
    """Returns the numbers that are black and white: those that the image says, or the bounds of its dtype."""
    return _RANGES[image.dtype] if image.range is None else image.range


def compute_shown_size(image: ImageSpec) -> tuple[int, int]:
    """Returns the (height, width) of what `build_shown_pixels` makes of an image."""
    return image.height, image.width * max(1, image.views)


def build_shown_pixels(pixels: npt.NDArray[Any], image: ImageSpec) -> npt.NDArray[np.uint8]:
    """Returns an image of a batch as uint8 (height, width, 1 or 3).

    Of RGBA the colours are laid on white. Of raw numbers the first three channels are shown, or one if there are fewer
    than three, scaled from the image's range; what is no number is black. Class numbers are grey levels. Views stand
    side by side.
    """
    if image.views:
        one = replace(image, views=0)
        return np.concatenate([build_shown_pixels(view, one) for view in pixels], axis=1)
    shown: npt.NDArray[Any]
    if image.mode == "index":
        shown = np.minimum(pixels, _WHITE)[:, :, np.newaxis]
        return shown.astype(np.uint8)
    if image.mode == "RGBA":
        alpha = pixels[:, :, _ALPHA:].astype(np.uint16)
        blended = (pixels[:, :, :_COLOURS] * alpha + _WHITE * (_WHITE - alpha)) // _WHITE
        return np.asarray(blended, np.uint8)
    if image.mode != "raw":
        return pixels
    shown = pixels[:, :, : _COLOURS if pixels.shape[2] >= _COLOURS else 1]
    low, high = get_number_range(image)
    levels = (shown.astype(np.float32) - np.float32(low)) * np.float32(_WHITE / (high - low))
    return np.asarray(np.rint(np.clip(np.nan_to_num(levels, nan=0.0), 0, _WHITE)), np.uint8)
