"""Which way up a picture is: the EXIF orientation. Copies of it in XMP are ignored, in every format alike."""

from __future__ import annotations

import struct
import warnings
from typing import Final

from PIL import Image

from streamd.decode.resize import BadImageError

UPRIGHT: Final = 1
SIDEWAYS: Final = 5  # orientations from here on exchange height and width

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
    """1 to 8 from a block of EXIF data, with or without its `Exif` prefix; 1 when it says nothing sensible.

    Raises BadImageError when the block cannot be read: which way up the picture is cannot be known then.
    """
    block = Image.Exif()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about metadata, of which one number is wanted
            block.load(exif)
            value = block.get(_ORIENTATION, UPRIGHT)
    except (OSError, ValueError, SyntaxError, TypeError, struct.error) as error:
        raise BadImageError(f"unreadable EXIF data: {error}") from error
    return value if isinstance(value, int) and value in range(1, 9) else UPRIGHT


def turn_upright(picture: Image.Image, orientation: int) -> Image.Image:
    """The picture turned so that it is shown as it was taken."""
    turn = _TURNS.get(orientation)
    return picture.transpose(turn) if turn is not None else picture
