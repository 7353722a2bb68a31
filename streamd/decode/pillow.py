"""All formats but three-colour JPEG by Pillow, with an allow-list of one format and bombs refused."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from io import BytesIO
from typing import Final

from PIL import (
    AvifImagePlugin,
    Image,
    ImageFile,
    PngImagePlugin,
    TiffImagePlugin,
    UnidentifiedImageError,
    features,
)

from streamd.core.spec import ImageSpec
from streamd.decode.exif import UPRIGHT, parse_orientation, turn_upright
from streamd.decode.random_crop import CropDraw, compute_crop
from streamd.decode.resize import BadImageError, Row, check_image_size, resize_picture
from streamd.decode.tiff import check_tiff_storage
from streamd.decode.to_rgb import PixelStorage, PlainMode, convert_to_plain
from streamd.errors import ConfigError
from streamd.limits import MAX_PIXELS

# Some formats get memory for all pixels as they are opened. Pillow refuses before that, at twice the number given here.
Image.MAX_IMAGE_PIXELS = MAX_PIXELS // 2
AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # there is a worker for every core already

_LIBRARIES: Final = {"PNG": "zlib", "WEBP": "webp", "AVIF": "avif", "TIFF": "libtiff", "JPEG": "jpg"}
# RuntimeError is what the AVIF decoder raises. The rest comes from plugins that trust a file's own numbers.
_FAULTS: Final = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    LookupError,
    TypeError,
    RuntimeError,
    struct.error,
)


def decode_with_pillow(data: bytes, row: Row, image: ImageSpec, format_name: str, draw: CropDraw | None = None) -> None:
    """Decodes an image of a known format into `row`: EXIF orientation applied, alpha on white, 16 bits scaled to 8.

    Raises BadImageError when the bytes are at fault, ConfigError when this Pillow cannot read the format.
    """
    _check_format_support(format_name)
    with _translate_faults(format_name):
        picture = turn_upright(*_load_picture(data, format_name, "RGB" if image.channels > 1 else "L"))
    resize_picture(
        row, picture, image, None if draw is None else compute_crop(picture.height, picture.width, image, draw)
    )


def _load_picture(data: bytes, format_name: str, mode: PlainMode) -> tuple[Image.Image, int]:
    """The file's first picture in `mode`, as it is stored, and its orientation.

    It is turned when what the decoder held of it is gone.
    """
    with Image.open(BytesIO(data), formats=(format_name,)) as picture:
        check_image_size(picture.height, picture.width)
        storage = _find_storage(picture, len(data))
        picture.info.pop("xmp", None)  # Pillow would turn a TIFF by it
        picture.load()
        exif = picture.info.get("exif")
        orientation = parse_orientation(exif) if isinstance(exif, bytes) else UPRIGHT
        return convert_to_plain(picture, mode, storage), orientation


@lru_cache(maxsize=16)
def _check_format_support(format_name: str) -> None:
    library = _LIBRARIES.get(format_name)
    if library is not None and not features.check(library):
        raise ConfigError(
            f"this Pillow was built without {library}, which {format_name} needs: install one of the wheels of Pillow"
        )


@contextmanager
def _translate_faults(format_name: str) -> Iterator[None]:
    """Whatever Pillow says of damaged bytes, as one kind of error."""
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        raise RuntimeError(
            "something in this process switched ImageFile.LOAD_TRUNCATED_IMAGES on: pixels would be invented"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about metadata; what concerns the pixels raises
            yield
    except Image.DecompressionBombError as error:
        raise BadImageError(f"more than {MAX_PIXELS:,} pixels: make it smaller") from error
    except UnidentifiedImageError as error:  # its text is an address in memory, another one each time
        raise BadImageError(f"a damaged {format_name}: its header cannot be read") from error
    except _FAULTS as error:
        raise BadImageError(_format_fault(format_name, str(error))) from error


def _format_fault(format_name: str, fault: str) -> str:
    if fault.startswith("Unsupported"):  # a sound file may be of a kind that Pillow does not know
        return f"a {format_name} that is not read ({fault}): convert it to PNG"
    return f"a damaged {format_name}: {fault}"


def _find_storage(picture: ImageFile.ImageFile, file_bytes: int) -> PixelStorage:
    """What must be known of the file before its pixels are made. Mends what Pillow reads at another depth."""
    if isinstance(picture, TiffImagePlugin.TiffImageFile):
        return check_tiff_storage(picture, file_bytes)
    if isinstance(picture, PngImagePlugin.PngImageFile):
        _mend_transparent_level(picture)
    if picture.format == "GIF" and picture.tile and picture.tile[0].extents != (0, 0, *picture.size):
        return PixelStorage(drawn=picture.tile[0].extents)
    return PixelStorage()


def _mend_transparent_level(picture: PngImagePlugin.PngImageFile) -> None:
    """Pillow scales 2 and 4 bits to 8, and cuts 16 bits of colour to 8, but leaves the transparent level as stored."""
    level, stored = picture.info.get("transparency"), picture.tile[0].args if picture.tile else None
    if level is None:
        return
    if stored == "RGB;16B":
        raise BadImageError("16 bits a channel with a transparent colour: convert it to 8 bits, or to an alpha channel")
    steps = {"L;2": 3, "L;4": 15}.get(str(stored))
    if steps is not None:
        picture.info["transparency"] = min(level, steps) * 255 // steps
