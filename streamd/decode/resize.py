"""Resizes decoded pixels to the size of a stream, in integer arithmetic: equal on every processor.

Pillow's resampling averages over all pixels that become one. A reduced decode has averaged already, so OpenCV's
bilinear resampling of two by two pixels does the rest: OpenCV promises the same bits everywhere, and it takes a third
of the time.
"""

from __future__ import annotations

from math import ceil
from typing import Any, Final

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from streamd.decode.geometry import Box, Geometry
from streamd.limits import MAX_PIXELS

Row = npt.NDArray[np.uint8]

cv2.setNumThreads(1)  # there is a worker for every core already

# The largest factor by which bilinear resampling shrinks a reduced decode. Against a Lanczos reference from full size,
# photographs reach 34.6 dB at this factor and 36.0 dB at 2; plain bilinear from full size, as in TensorFlow, reaches
# 31.5 and 34.3 dB.
_MAX_BILINEAR_SCALE: Final = 3


class BadImageError(Exception):
    """The bytes of an image are at fault; the text is the reason."""


class BadFrameError(BadImageError):
    """One frame of a clip is at fault: `frame` of `image`, counted from 0, for `reason`."""

    def __init__(self, image: str, frame: int, reason: str) -> None:
        super().__init__(f"{image}, frame {frame + 1}: {reason}")
        self.image = image
        self.frame = frame
        self.reason = reason


def check_image_size(height: int, width: int) -> None:
    if height * width > MAX_PIXELS:
        raise BadImageError(f"{width}x{height} pixels are more than {MAX_PIXELS:,}: make it smaller")
    if height <= 0 or width <= 0:
        raise BadImageError(f"its size is {width}x{height}, so it has no pixels")


def resize_picture(row: Row, picture: Image.Image, geometry: Geometry, fill: int = 0) -> None:
    """Resizes the part of `picture` (mode RGB or L) that `geometry` shows into its place in `row`."""
    place = _fill_padding(row, geometry, fill)
    if geometry.is_cut:
        place[:] = _resize_averaging(picture.crop(geometry.pixel_box), place, None)
    else:
        place[:] = _resize_averaging(picture, place, geometry.box)


def resize_reduced_decode(row: Row, pixels: Row, geometry: Geometry, fill: int = 0) -> None:
    """Resizes the part of a reduced decode, (height, width, channels), that `geometry` shows into its place in `row`.

    `geometry` is in pixels of the reduced decode. Crops are cut at whole pixels.
    """
    place = _fill_padding(row, geometry, fill)
    if geometry.is_cut:
        left, top, right, bottom = geometry.pixel_box
        shown = pixels[top:bottom, left:right]
    else:
        # Equal whole margins are cut on opposite sides.
        height, width = pixels.shape[:2]
        left_margin, top_margin, _, _ = geometry.box
        down, across = _round_margin(top_margin, height), _round_margin(left_margin, width)
        shown = pixels[down : height - down, across : width - across]
    if shown.shape == place.shape:
        place[:] = shown
    elif any(was > _MAX_BILINEAR_SCALE * now for was, now in zip(shown.shape, place.shape, strict=True)):
        place[:] = _resize_averaging(build_pil_image(shown), place, None)
    else:
        try:
            cv2.resize(shown, (place.shape[1], place.shape[0]), dst=place, interpolation=cv2.INTER_LINEAR_EXACT)
        except cv2.error as error:  # the arguments are sound, so it lacked memory
            raise MemoryError(str(error)) from error


def _fill_padding(row: Row, geometry: Geometry, fill: int) -> Row:
    """Returns the part of `row` where the picture lands. Where that is not all of the row, the rest becomes `fill`."""
    if geometry.is_whole_row:
        return row
    left, top, right, bottom = geometry.place
    row[:] = fill
    return row[top:bottom, left:right]


def _round_margin(margin: float, length: int) -> int:
    """Returns the whole pixels to cut on either side of a line of `length`, of which at least one remains.

    A pixel that lies half inside is kept.
    """
    return min(ceil(margin - 0.5), (length - 1) // 2)


def _resize_averaging(picture: Image.Image, place: Row, box: Box | None) -> npt.NDArray[Any]:
    """Resizes the picture, or its part in `box`, to the shape of `place`, averaging over all pixels that become one."""
    height, width, _ = place.shape
    if picture.size != (width, height) or box not in {None, (0, 0, width, height)}:
        picture = picture.resize((width, height), Image.Resampling.BILINEAR, box)
    return np.asarray(picture).reshape(place.shape)


def build_pil_image(pixels: npt.NDArray[np.uint8]) -> Image.Image:
    """Copies `pixels`, uint8 (height, width, 1 or 3), into a picture of mode L or RGB."""
    return Image.fromarray(pixels if pixels.shape[2] > 1 else np.ascontiguousarray(pixels[:, :, 0]))
