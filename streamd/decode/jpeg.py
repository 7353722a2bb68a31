"""JPEG by libjpeg-turbo, at the smallest DCT scale that still covers the target, into the slot where it fits."""

from __future__ import annotations

import struct
import warnings
from io import BytesIO
from typing import Final

import numpy as np
import simplejpeg
from PIL import Image

from streamd.decode import pillow
from streamd.decode.resize import BadImageError, Row, check_pixels, covering_size, fill
from streamd.spec import ImageSpec

_MARKER: Final = 0xFF
_APPLICATION: Final = range(0xE0, 0xF0)
_COMMENT: Final = 0xFE
_ORIENTATION: Final = 0x0112
_UPRIGHT: Final = 1
_SIDEWAYS: Final = 5  # orientations from here on exchange height and width


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
        if height == image.height and width == image.width and orientation == _UPRIGHT:
            simplejpeg.decode_jpeg(data, colour, buffer=row)
            return
        least = _least_size(height, width, orientation, image)
        pixels = simplejpeg.decode_jpeg(data, colour, min_height=least[0], min_width=least[1])
    except ValueError as error:
        raise BadImageError(f"a damaged JPEG: {error}") from error
    if pixels.shape == row.shape and orientation == _UPRIGHT:
        row[:] = pixels
        return
    picture = Image.fromarray(pixels if image.channels > 1 else np.ascontiguousarray(pixels[:, :, 0]))
    fill(row, _turn(picture, orientation), image)


def _least_size(height: int, width: int, orientation: int, image: ImageSpec) -> tuple[int, int]:
    """The height and width, as stored, below which the decode must not go; 0 asks for the full size."""
    if image.exact:
        return 0, 0
    if orientation >= _SIDEWAYS:
        upright = covering_size(width, height, image)
        return upright[1], upright[0]
    return covering_size(height, width, image)


def _has_exif(data: bytes) -> bool:
    """Walks the application segments that come before a JPEG's tables: EXIF data is one of them or is not there."""
    at = 2
    while at + 10 < len(data) and data[at] == _MARKER and (data[at + 1] in _APPLICATION or data[at + 1] == _COMMENT):
        if data[at + 4 : at + 10] == b"Exif\x00\x00":
            return True
        at += 2 + int.from_bytes(data[at + 2 : at + 4])
    return False


def _orientation(data: bytes) -> int:
    if not _has_exif(data):
        return _UPRIGHT
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about metadata, of which one number is wanted
            with Image.open(BytesIO(data), formats=("JPEG",)) as picture:
                value = picture.getexif().get(_ORIENTATION, _UPRIGHT)
    except (OSError, ValueError, SyntaxError, struct.error) as error:
        raise BadImageError(f"unreadable EXIF data: {error}") from error
    return value if value in range(1, 9) else _UPRIGHT


_TURNS: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def _turn(picture: Image.Image, orientation: int) -> Image.Image:
    turn = _TURNS.get(orientation)
    return picture.transpose(turn) if turn is not None else picture
