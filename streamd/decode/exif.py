"""The EXIF orientation of a picture. Copies of it in XMP are ignored in every format."""

from __future__ import annotations

import struct
import warnings
from typing import Final

from PIL import Image

from streamd.decode.geometry import SIDEWAYS, UPRIGHT

__all__ = ["SIDEWAYS", "UPRIGHT", "parse_orientation", "turn_upright"]

_ORIENTATION: Final = 0x0112
_TURNS: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def parse_orientation(exif: bytes) -> int:
    """Returns the orientation, 1 to 8, from a block of EXIF data, with or without its `Exif` prefix.

    Returns 1, upright, for a missing or invalid value, and for a block that cannot be read: such a picture is shown as
    it is stored, as viewers show it.
    """
    value = find_orientation(exif)
    return value if isinstance(value, int) and value in range(1, 9) else UPRIGHT


def find_orientation(exif: bytes) -> object:
    """Returns the value that a block of EXIF data has for the orientation, 1 if none; None if it cannot be read."""
    block = Image.Exif()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they concern other metadata than this one number
            block.load(exif)
            return block.get(_ORIENTATION, UPRIGHT)
    except (OSError, ValueError, SyntaxError, TypeError, struct.error):
        return None


def turn_upright(picture: Image.Image, orientation: int) -> Image.Image:
    """Returns the picture turned upright; the same object if its orientation needs no turn."""
    turn = _TURNS.get(orientation)
    return picture.transpose(turn) if turn is not None else picture
