"""PNG, WebP, BMP and four-colour JPEG by Pillow, with an allow-list of one format and bombs refused."""

from __future__ import annotations

import struct
import warnings
from io import BytesIO

import numpy as np
from PIL import Image, ImageFile, ImageOps

from streamd.decode.resize import BadImageError, Row, check_pixels, fill
from streamd.spec import ImageSpec

Image.MAX_IMAGE_PIXELS = None  # check_pixels refuses what is too large, by our own bound and before any pixel is made


def decode_into(data: bytes, row: Row, image: ImageSpec, format_name: str) -> None:
    """Decodes an image of a known format into `row`: EXIF orientation applied, alpha on white, 16 bits scaled to 8."""
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        raise RuntimeError(
            "something in this process switched ImageFile.LOAD_TRUNCATED_IMAGES on: pixels would be invented"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about metadata; what concerns the pixels raises
            with Image.open(BytesIO(data), formats=(format_name,)) as picture:
                check_pixels(picture.height, picture.width)
                picture.load()
                upright = ImageOps.exif_transpose(picture)
                plain = _plain(upright, "RGB" if image.channels > 1 else "L")
    except (OSError, ValueError, SyntaxError, EOFError, IndexError, KeyError, TypeError, struct.error) as error:
        raise BadImageError(f"a damaged {format_name}: {error}") from error
    fill(row, plain, image)


def _plain(picture: Image.Image, mode: str) -> Image.Image:
    """The picture in `mode`, without transparency or deep pixels."""
    if picture.mode.startswith("I") or picture.mode == "F":
        # 16 bits: 65535 is white; 257 = 65535 / 255.
        deep = np.asarray(picture, dtype=np.float64)
        return Image.fromarray(np.clip(np.rint(deep / 257.0), 0, 255).astype(np.uint8)).convert(mode)
    if picture.has_transparency_data:
        layered = picture.convert("RGBA")
        white = Image.new("RGBA", layered.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, layered).convert(mode)
    return picture if picture.mode == mode else picture.convert(mode)
