"""From decoded pixels to the size of a stream. Pillow's resampling is integer arithmetic: equal on every processor."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from streamd.limits import MAX_PIXELS
from streamd.spec import ImageSpec

Row = npt.NDArray[np.uint8]
Box = tuple[float, float, float, float]


class BadImageError(Exception):
    """An image's own bytes are at fault; the text is the reason."""


def check_pixels(height: int, width: int) -> None:
    if height * width > MAX_PIXELS:
        raise BadImageError(f"{width}x{height} pixels are more than {MAX_PIXELS:,}: make it smaller")
    if height <= 0 or width <= 0:
        raise BadImageError(f"a size of {width}x{height}")


def covering_size(height: int, width: int, image: ImageSpec) -> tuple[int, int]:
    """The (height, width) that a reduced decode must not fall below."""
    if image.resize == "stretch":
        return image.height, image.width
    scales = (image.height / height, image.width / width)
    scale = max(scales) if image.resize == "crop" else min(scales)
    return max(1, round(height * scale)), max(1, round(width * scale))


def fill(row: Row, picture: Image.Image, image: ImageSpec) -> None:
    """Resizes `picture` (mode RGB or L) into `row` by the stream's rule."""
    if image.resize == "pad":
        height, width = covering_size(picture.height, picture.width, image)
        top, left = (image.height - height) // 2, (image.width - width) // 2
        row[:] = 0
        row[top : top + height, left : left + width] = _pixels(picture, height, width, None, image)
        return
    box = _centre(picture, image) if image.resize == "crop" else None
    row[:] = _pixels(picture, image.height, image.width, box, image)


def _centre(picture: Image.Image, image: ImageSpec) -> Box:
    """The largest centred part of the picture that has the target's proportions."""
    scale = min(picture.height / image.height, picture.width / image.width)
    height, width = image.height * scale, image.width * scale
    # Rounding may make the box a hair larger than the picture, and Pillow refuses offsets below 0.
    left, top = max(0.0, (picture.width - width) / 2), max(0.0, (picture.height - height) / 2)
    return left, top, left + width, top + height


def _pixels(picture: Image.Image, height: int, width: int, box: Box | None, image: ImageSpec) -> npt.NDArray[Any]:
    if picture.size != (width, height) or box is not None:
        picture = picture.resize((width, height), Image.Resampling.BILINEAR, box)
    return np.asarray(picture).reshape(height, width, image.channels)
