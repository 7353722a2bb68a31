"""Makes pictures of 8 bits of the numbers in a batch, for people to look at. Pure."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamd.core.class_colours import colour_class_numbers
from streamd.core.spec import ImageSpec, PixelType
from streamd.core.text import format_number

_COLOURS: Final = 3
_ALPHA: Final = 3  # the place of alpha among the channels of RGBA
_WHITE: Final = 255
_SQUARES: Final = 16  # of a checkerboard, along the longer side
_LIGHT_SQUARE: Final = 250
_DARK_SQUARE: Final = 205
_MEASURED_PIXELS: Final = 1 << 16  # of a batch: enough to find the range of its numbers
_OUTER_PERCENTILES: Final = (1, 99)  # a few broken sensors' pixels would leave the rest black
_RANGES: Final[dict[PixelType, tuple[float, float]]] = {
    "uint8": (0.0, 255.0),
    "uint16": (0.0, 65535.0),
    "float32": (0.0, 1.0),
}


def get_number_range(image: ImageSpec) -> tuple[float, float]:
    """Returns the numbers that are black and white: those that the image says, or the bounds of its dtype."""
    return _RANGES[image.dtype] if image.range is None else image.range


def measure_levels(numbers: npt.NDArray[Any], image: ImageSpec) -> tuple[float, float]:
    """Returns the numbers that are shown as black and white in images (B, ..., height, width, channels) of a batch.

    Numbers of 8 bits are shown from the image's range. Of others, of which a batch seldom holds all, the range is that
    of the shown channels, without the hundredth at either end.
    """
    if image.mode != "raw" or image.dtype == "uint8" or not numbers.size:
        return get_number_range(image)
    pixels = numbers.reshape(-1, numbers.shape[-1])
    some = pixels[:: -(-len(pixels) // _MEASURED_PIXELS), : _count_shown_channels(numbers.shape[-1])]
    known = some[np.isfinite(some)]
    if not known.size:
        return get_number_range(image)
    low, high = np.percentile(known, _OUTER_PERCENTILES).tolist()
    if low == high:
        low, high = float(known.min()), float(known.max())
    return (low, high) if low < high else (low - 1, high + 1)


def _count_shown_channels(channels: int) -> int:
    return _COLOURS if channels >= _COLOURS else 1


def describe_shown_numbers(image: ImageSpec, levels: tuple[float, float]) -> str:
    """Returns how raw numbers are shown: `120 is black and 3,120 white; the first 3 of 4 channels`."""
    low, high = map(format_number, levels)
    shown = _count_shown_channels(image.channels)
    left_out = f"; the first {shown} of {image.channels} channels" if shown > 1 else "; the first channel"
    return f"{low} is black and {high} white{left_out if shown < image.channels else ''}"


def build_shown_pixels(
    pixels: npt.NDArray[Any], image: ImageSpec, levels: tuple[float, float] | None = None
) -> npt.NDArray[np.uint8]:
    """Returns an image of a batch as uint8 (height, width, 1 or 3).

    RGBA is laid on a checkerboard. Of raw numbers the first three channels are shown, or one if there are fewer than
    three; `levels` has the numbers that are black and white, by default those of the image's range. What is no number
    is black. Class numbers have the colours of their classes; the image's fill is a checkerboard. Views stand side by
    side.
    """
    if pixels.ndim > len(image.picture_shape):
        return np.concatenate([build_shown_pixels(view, image, levels) for view in pixels], axis=1)
    if image.mode == "index":
        colours = colour_class_numbers(pixels)
        shown = np.where((pixels == image.fill)[:, :, np.newaxis], _build_checkerboard(*pixels.shape), colours)
        return np.asarray(shown, np.uint8)
    if image.mode == "RGBA":
        alpha = pixels[:, :, _ALPHA:].astype(np.uint16)
        below = _build_checkerboard(*pixels.shape[:2])
        blended = (pixels[:, :, :_COLOURS] * alpha + below * (_WHITE - alpha)) // _WHITE
        return np.asarray(blended, np.uint8)
    if image.mode != "raw":
        return pixels
    numbers = pixels[:, :, : _count_shown_channels(pixels.shape[2])]
    low, high = levels or get_number_range(image)
    grey = (numbers.astype(np.float32) - np.float32(low)) * np.float32(_WHITE / (high - low))
    return np.asarray(np.rint(np.clip(np.nan_to_num(grey, nan=0.0), 0, _WHITE)), np.uint8)


def _build_checkerboard(height: int, width: int) -> npt.NDArray[np.uint8]:
    """Returns grey squares, (height, width, 1), as many on pictures of any size."""
    side = max(1, -(-max(height, width) // _SQUARES))
    rows, columns = np.arange(height) // side, np.arange(width) // side
    is_dark = (rows[:, np.newaxis] + columns) % 2 == 1
    return np.where(is_dark, _DARK_SQUARE, _LIGHT_SQUARE).astype(np.uint8)[:, :, np.newaxis]
