"""From every kind of pixel that Pillow knows to plain RGB or L: transparency on white, deep levels scaled to 8 bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

from streamd.decode.resize import BadImageError

PlainMode = Literal["RGB", "L"]
FloatLevels = npt.NDArray[np.float32]
PixelBox = tuple[int, int, int, int]  # left, top, right, bottom

# What white is in the modes that hold more than 8 bits a channel. It follows from the mode and never from the picture:
# a white taken from the brightest pixel would be another one in every file.
_WHITE: Final = {"I;16": 65535.0, "I;16B": 65535.0, "I;16L": 65535.0, "I": 65535.0, "F": 1.0}
_WHITE_LEVEL: Final = 255
_BAND_PIXELS: Final = 1 << 18  # made plain at a time: a megabyte, also of the largest picture


@dataclass(frozen=True, slots=True)
class PixelStorage:
    """How a file keeps its pixels, where the mode alone does not tell. `white`: None is what the mode says."""

    white: float | None = None
    inverted: bool = False
    drawn: PixelBox | None = None  # what is drawn at all; None is all


def convert_to_plain(picture: Image.Image, mode: PlainMode, storage: PixelStorage) -> Image.Image:
    """The picture in `mode`. Raises BadImageError where its levels cannot be known."""
    if picture.mode == "LAB":
        raise BadImageError("CIELAB colours, which need colour management: convert it to RGB")
    if picture.mode in _WHITE or picture.has_transparency_data:
        flat = _convert_by_bands(picture, mode, storage)
    else:
        flat = picture if picture.mode == mode else picture.convert(mode)
    return flat if storage.drawn is None else _fill_undrawn_white(flat, storage.drawn)


def _convert_by_bands(picture: Image.Image, mode: PlainMode, storage: PixelStorage) -> Image.Image:
    """Made plain from top to bottom, so that what lies between the steps stays small."""
    bands = [*_iterate_bands(picture.size)]
    if len(bands) == 1:
        return _convert_part(picture, picture, mode, storage)
    flat = Image.new(mode, picture.size)
    for band in bands:
        flat.paste(_convert_part(picture.crop(band), picture, mode, storage), band[:2])
    return flat


def _iterate_bands(size: tuple[int, int]) -> Iterator[PixelBox]:
    width, height = size
    rows = max(1, _BAND_PIXELS // width)
    for top in range(0, height, rows):
        yield 0, top, width, min(top + rows, height)


def _convert_part(part: Image.Image, whole: Image.Image, mode: PlainMode, storage: PixelStorage) -> Image.Image:
    opaque = _reduce_depth(part, whole, storage) if part.mode in _WHITE else _lay_on_white(part)
    return opaque if opaque.mode == mode else opaque.convert(mode)


def _reduce_depth(part: Image.Image, whole: Image.Image, storage: PixelStorage) -> Image.Image:
    """Deep levels as L; a level that is the transparent one, as white."""
    deep = _to_float_levels(part)
    white = storage.white or _WHITE[part.mode]
    levels = np.rint(deep * np.float32(255.0 / white))
    if not 0 <= levels.min() <= levels.max() <= 255:  # noqa: PLR2004 - uint8; what is not a number fails here too
        low, high = _find_level_range(whole)
        raise BadImageError(f"levels from {low:g} to {high:g}, where 0 is black and {white:g} is white: scale them so")
    if storage.inverted:
        levels = 255 - levels
    transparent = part.info.get("transparency")
    if transparent is not None:
        levels[deep == transparent] = _WHITE_LEVEL
    return Image.fromarray(levels.astype(np.uint8))


def _to_float_levels(part: Image.Image) -> FloatLevels:
    return np.asarray(part, dtype=np.float32)  # holds every level of 16 bits, in half the memory of float64


def _find_level_range(picture: Image.Image) -> tuple[float, float]:
    """The lowest and the highest level; not a number, if one of them is none."""
    lows, highs = zip(
        *((deep.min(), deep.max()) for deep in map(_to_float_levels, map(picture.crop, _iterate_bands(picture.size)))),
        strict=True,
    )
    return float(np.min(lows)), float(np.max(highs))


def _lay_on_white(picture: Image.Image) -> Image.Image:
    """The picture in colour, laid on white."""
    layered = picture.convert("LA") if picture.mode == "La" else picture  # Pillow has no shorter way from there to RGBA
    layered = layered.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layered.size, (_WHITE_LEVEL,) * 4), layered)


def _fill_undrawn_white(picture: Image.Image, drawn: PixelBox) -> Image.Image:
    """White wherever nothing was drawn."""
    framed = Image.new(picture.mode, picture.size, "white")
    framed.paste(picture.crop(drawn), drawn[:2])
    return framed
