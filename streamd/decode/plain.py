"""From every kind of pixel that Pillow knows to plain RGB or L: transparency on white, deep levels scaled to 8 bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from PIL import Image

from streamd.decode.resize import BadImageError

Plain = Literal["RGB", "L"]

# What white is in the modes that hold more than 8 bits a channel. It follows from the mode and never from the picture:
# a white taken from the brightest pixel would be another one in every file.
_WHITE: Final = {"I;16": 65535.0, "I;16B": 65535.0, "I;16L": 65535.0, "I": 65535.0, "F": 1.0}
_PAPER: Final = 255


@dataclass(frozen=True, slots=True)
class Storage:
    """How a file keeps its pixels, where the mode alone does not tell. `white`: None is what the mode says."""

    white: float | None = None
    inverted: bool = False
    drawn: tuple[int, int, int, int] | None = None  # left, top, right, bottom of what is drawn at all; None is all


def plain(picture: Image.Image, mode: Plain, storage: Storage) -> Image.Image:
    """The picture in `mode`. Raises BadImageError where its levels cannot be known."""
    if picture.mode == "LAB":
        raise BadImageError("CIELAB colours, which need colour management: convert it to RGB")
    if picture.mode in _WHITE:
        opaque = _shallow(picture, storage)
    elif picture.has_transparency_data:
        opaque = _on_paper(picture)
    else:
        opaque = picture
    flat = opaque if opaque.mode == mode else opaque.convert(mode)
    return flat if storage.drawn is None else _framed(flat, storage.drawn)


def _shallow(picture: Image.Image, storage: Storage) -> Image.Image:
    """Deep levels as L; a level that is the transparent one, as white."""
    deep = np.asarray(picture, dtype=np.float32)  # holds every level of 16 bits, in half the memory of float64
    white = storage.white or _WHITE[picture.mode]
    levels = np.rint(deep * np.float32(255.0 / white))
    if not 0 <= levels.min() <= levels.max() <= 255:  # noqa: PLR2004 - uint8; what is not a number fails here too
        raise BadImageError(
            f"levels from {deep.min():g} to {deep.max():g}, where 0 is black and {white:g} is white: scale them so"
        )
    if storage.inverted:
        levels = 255 - levels
    transparent = picture.info.get("transparency")
    if transparent is not None:
        levels[deep == transparent] = _PAPER
    return Image.fromarray(levels.astype(np.uint8))


def _on_paper(picture: Image.Image) -> Image.Image:
    """The picture in colour, laid on white."""
    layered = picture.convert("LA") if picture.mode == "La" else picture  # Pillow has no shorter way from there to RGBA
    layered = layered.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layered.size, (_PAPER,) * 4), layered)


def _framed(picture: Image.Image, drawn: tuple[int, int, int, int]) -> Image.Image:
    """White wherever nothing was drawn."""
    framed = Image.new(picture.mode, picture.size, "white")
    framed.paste(picture.crop(drawn), drawn[:2])
    return framed
