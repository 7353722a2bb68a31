"""Decodes masks: the class numbers of a file, palette indices or grey levels, as they are stored.

Numbers are never mixed: each pixel of a row has the number of the pixel of the file that holds its middle, as Pillow
finds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile
from PIL import TiffImagePlugin as Tiff

from streamd.core.spec import ImageSpec
from streamd.decode.geometry import Draw, Geometry, draw_geometry
from streamd.decode.pillow import check_tiff_storage, load_upright_with_pillow, restore_bmp_palette
from streamd.decode.resize import BadImageError

Numbers = npt.NDArray[Any]  # (height, width) of uint8, uint16 or int32

_NUMBER_MODES: Final = frozenset({"1", "L", "P", "I", "I;16", "I;16B", "I;16L", "I;16N"})
_BYTE_MODES: Final = frozenset({"1", "L", "P"})
_CHANGING_FORMATS: Final = {
    "JPEG": "a JPEG changes numbers when it is saved",
    "WEBP": "WebP has no class numbers",
    "AVIF": "AVIF has no class numbers",
}
_WHOLE_LEVELS: Final = frozenset({255, 65535})  # of a PGM: Pillow scales levels of any other depth
_STEPS: Final = {"L;2": 3, "L;4": 15}  # the largest level, by Pillow's name of the stored pixels
_WHITES: Final = {"L": 255, "I": 65535}  # to which Pillow scales it, by mode


def decode_class_numbers_into_rows(
    data: bytes, rows: Sequence[Numbers], image: ImageSpec, format_name: str, draws: Sequence[Draw | None]
) -> list[Geometry]:
    """Decodes a mask of a known format once, and writes what each of `draws` shows of it into the row of that number.

    Rows are (height, width) of the image's dtype. Returns how the upright picture lands in each. Raises BadImageError
    if the file holds no class numbers, or larger ones than the dtype holds; ConfigError if this Pillow cannot read the
    format.
    """
    picture, orientation = _load_upright(data, format_name)
    size = picture.height, picture.width
    drawn = [draw_geometry(image, size, draw).with_orientation(orientation) for draw in draws]
    # Numbers that the rows' dtype may not hold.
    if picture.mode not in _BYTE_MODES and (rows[0].dtype.itemsize == 1 or picture.mode == "I"):
        numbers = np.asarray(picture)
        _check_number_range(int(numbers.min()), int(numbers.max()), rows[0].dtype)
    for row, geometry in zip(rows, drawn, strict=True):
        _fill_row(row, picture, geometry, image.fill)
    return drawn


def read_class_numbers(data: bytes, format_name: str) -> Numbers:
    """Returns the class numbers of a mask of a known format as they are stored, upright, (height, width).

    Raises as `decode_class_numbers_into_rows` does, but for numbers that are too large.
    """
    numbers: Numbers = np.asarray(_load_upright(data, format_name)[0])
    return numbers


def place_class_numbers(numbers: Numbers, row: Numbers, geometry: Geometry, fill: int) -> None:
    """Writes the part of class numbers, whole numbers of any type, that `geometry` shows into its place in `row`.

    The rest becomes `fill`. Raises BadImageError for numbers that the row's dtype does not hold.
    """
    if not np.can_cast(numbers.dtype, row.dtype):
        _check_number_range(int(numbers.min()), int(numbers.max()), row.dtype)
    _fill_row(row, Image.fromarray(numbers.astype(row.dtype)), geometry, fill)


def _load_upright(data: bytes, format_name: str) -> tuple[Image.Image, int]:
    """Returns the file's first picture, upright, and the orientation that it is stored in.

    Raises BadImageError and ConfigError.
    """
    if format_name in _CHANGING_FORMATS:
        raise BadImageError(f"a mask in {format_name}: {_CHANGING_FORMATS[format_name]}; save masks as PNG")
    return load_upright_with_pillow(data, format_name, _find_level_steps, _restore_levels)


def _find_level_steps(picture: ImageFile.ImageFile, data: bytes) -> int | None:
    """Returns the largest level that the file may hold, where Pillow spreads levels of fewer bits; None elsewhere.

    Raises BadImageError unless every pixel is one number, which can be given as it is stored.
    """
    if picture.format == "BMP":
        restore_bmp_palette(picture, data)
    if picture.mode not in _NUMBER_MODES:
        raise BadImageError(
            f"a mask of mode {picture.mode}: class numbers need one channel; save it with a palette (P) or as grey (L)"
        )
    is_inverted = str(picture.format) == "PPM" and picture.mode == "1"
    if isinstance(picture, Tiff.TiffImageFile):
        is_inverted = check_tiff_storage(picture, len(data)).inverted and picture.mode != "P"
        samples = int(picture.tag_v2.get(Tiff.SAMPLESPERPIXEL, 1))
        if samples > 1:
            raise BadImageError(f"a mask of {samples} channels: class numbers need one; save it as PNG")
        if picture.info["compression"] == "jpeg":
            raise BadImageError("class numbers in a TIFF compressed as JPEG, which changes them: save it as PNG")
    if is_inverted:
        raise BadImageError("a mask whose level 0 is white, so that its class numbers are inverted: save it as PNG")
    if picture.format == "GIF" and picture.tile and picture.tile[0].extents != (0, 0, *picture.size):
        raise BadImageError("a GIF that draws only a part of its picture: save it as PNG")
    args: Any = picture.tile[0].args if picture.tile else ()
    if str(picture.format) == "PPM":
        most = args[-1] if isinstance(args, tuple) and picture.mode != "1" else None
        return most if isinstance(most, int) and most not in _WHOLE_LEVELS else None
    return _STEPS.get(str(args[0] if isinstance(args, tuple) and args else args).removesuffix("R"))


def _restore_levels(picture: Image.Image, steps: int | None) -> Image.Image:
    """Returns the levels from 0 to `steps` that Pillow has spread over 0 to white, rounded to the nearest."""
    if steps is None:
        return picture
    white = _WHITES[picture.mode]
    levels = (np.asarray(picture, dtype=np.int64) * steps + white // 2) // white
    return Image.fromarray(levels.astype(np.uint8 if picture.mode == "L" else np.int32))


def _check_number_range(low: int, high: int, dtype: np.dtype[Any]) -> None:
    """Raises BadImageError unless `dtype` holds the class numbers from `low` to `high`."""
    most = int(np.iinfo(dtype).max)
    if not 0 <= low <= high <= most:
        found = high if high > most else low
        remedy = "use dtype: uint16" if 0 < found <= np.iinfo(np.uint16).max else "correct the mask"
        raise BadImageError(f"it holds the class number {found}, and {dtype} holds 0 to {most}; {remedy}")


def _fill_row(row: Numbers, picture: Image.Image, geometry: Geometry, fill: int) -> None:
    left, top, right, bottom = geometry.place
    if not geometry.is_whole_row:
        row[:] = fill
    if not geometry.is_unresized:
        height, width = geometry.place_size
        picture = picture.resize((width, height), Image.Resampling.NEAREST, geometry.box)
    row[top:bottom, left:right] = np.asarray(picture)
