"""JPEG by libjpeg-turbo, at the smallest DCT scale that still covers the target, into the slot where it fits."""

from __future__ import annotations

from typing import Final

import numpy as np
import simplejpeg
from PIL import Image

from streamd.decode import pillow
from streamd.decode.orientation import SIDEWAYS, UPRIGHT, orientation_of, upright
from streamd.decode.resize import BadImageError, Row, check_pixels, covering_size, fill
from streamd.spec import ImageSpec

_MARKER: Final = 0xFF
_APPLICATION: Final = range(0xE0, 0xF0)
_COMMENT: Final = 0xFE


def decode_into(data: bytes, row: Row, image: ImageSpec) -> None:
    """Decodes a JPEG into `row`. Slow but exact DCT and upsampling: the fast ones differ by up to six grey levels."""
    try:
        height, width, colourspace, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError as error:
        raise BadImageError(f"a damaged JPEG header: {error}") from error
    check_pixels(height, width)
    if colourspace in {"CMYK", "YCCK"}:
        pillow.decode_into(data, row, image, "JPEG")
        return
    orientation = _orientation(data)
    colour = "RGB" if image.channels == 3 else "GRAY"  # noqa: PLR2004 - three colours
    try:
        if height == image.height and width == image.width and orientation == UPRIGHT:
            simplejpeg.decode_jpeg(data, colour, buffer=row)
            return
        least = _least_size(height, width, orientation, image)
        pixels = simplejpeg.decode_jpeg(data, colour, min_height=least[0], min_width=least[1])
    except ValueError as error:
        raise BadImageError(f"a damaged JPEG: {error}") from error
    if pixels.shape == row.shape and orientation == UPRIGHT:
        row[:] = pixels
        return
    picture = Image.fromarray(pixels if image.channels > 1 else np.ascontiguousarray(pixels[:, :, 0]))
    fill(row, upright(picture, orientation), image)


def _least_size(height: int, width: int, orientation: int, image: ImageSpec) -> tuple[int, int]:
    """The height and width, as stored, below which the decode must not go; 0 asks for the full size."""
    if image.exact:
        return 0, 0
    if orientation >= SIDEWAYS:
        turned = covering_size(width, height, image)
        return turned[1], turned[0]
    return covering_size(height, width, image)


def _orientation(data: bytes) -> int:
    """Walks the application segments that come before a JPEG's tables: EXIF data is one of them or is not there."""
    at = 2
    while at + 10 < len(data) and data[at] == _MARKER and (data[at + 1] in _APPLICATION or data[at + 1] == _COMMENT):
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4])
        if data[at + 4 : at + 10] == b"Exif\x00\x00":
            return orientation_of(data[at + 4 : end])
        at = end
    return UPRIGHT
