"""Draws one picture of a sample as people look at it, with its mask, its points, and its boxes with their classes."""

from __future__ import annotations

from typing import Final

import numpy as np
from PIL import Image, ImageDraw

from streamd.core.class_colours import Colour, choose_text_colour, lay_mask_over
from streamd.core.shown_pictures import ShownBox, ShownPicture, ShownPoint, resample_mask
from streamd.decode.drawn_text import draw_text, measure_width, shorten_text
from streamd.decode.pil_image import build_pil_image

_PEN: Final = 2  # pixels
_RIM: Final[Colour] = (20, 20, 20)  # around each line and point, so that they show on bright pictures
_NAME_SIZE: Final = 11  # of letters
_NAME_PADDING: Final = 3
_NAME_HEIGHT: Final = 14
_POINT_RADIUS: Final = 3


def draw_shown_picture(shown: ShownPicture, size: tuple[int, int]) -> Image.Image:
    """Returns a picture in RGB, resized to `size` (height, width), with all that is drawn on it."""
    picture = resize_shown_picture(shown, size)
    (high, wide), (height, width) = size, shown.plan.size
    scale = wide / width, high / height
    for box in shown.boxes:
        _draw_box_outline(picture, box, scale)
    # Names come last, since the outline of another box must not cross them.
    for box in shown.boxes:
        _draw_box_name(picture, box, scale)
    for point in shown.points:
        _draw_point(picture, point, scale)
    return picture


def resize_shown_picture(shown: ShownPicture, size: tuple[int, int]) -> Image.Image:
    """Returns a picture in RGB with its mask laid over it, resized to `size` (height, width)."""
    high, wide = size
    picture = build_pil_image(shown.pixels).convert("RGB")
    # Enlarged without smoothing, so that each pixel that a trainer gets is visible as a square.
    how = Image.Resampling.NEAREST if wide >= picture.width else Image.Resampling.LANCZOS
    resized = picture.resize((wide, high), how)
    if shown.mask is None:
        return resized
    # The mask is laid over the resized picture, so that outlines are a pixel wide on the screen.
    mask = resample_mask(shown.mask, size)
    return Image.fromarray(lay_mask_over(np.asarray(resized), mask, shown.transparent))


def _draw_box_outline(picture: Image.Image, box: ShownBox, scale: tuple[float, float]) -> None:
    left, top, right, bottom = _scale_box(box, scale)
    pen = ImageDraw.Draw(picture)
    pen.rectangle((left - 1, top - 1, right + 1, bottom + 1), outline=_RIM)
    pen.rectangle((left, top, right, bottom), outline=box.colour, width=_PEN)
    if right - left > 2 * _PEN and bottom - top > 2 * _PEN:
        pen.rectangle((left + _PEN, top + _PEN, right - _PEN, bottom - _PEN), outline=_RIM)


def _scale_box(box: ShownBox, scale: tuple[float, float]) -> tuple[int, int, int, int]:
    """Returns the first and last pixels of a box on the resized picture: left, top, right, bottom."""
    left, top = round(box.left * scale[0]), round(box.top * scale[1])
    right, bottom = round(box.right * scale[0]) - 1, round(box.bottom * scale[1]) - 1
    return left, top, max(left, right), max(top, bottom)


def _draw_box_name(picture: Image.Image, box: ShownBox, scale: tuple[float, float]) -> None:
    """Writes the class of a box above its upper left corner, or within it where there is no room above."""
    left, top, _, _ = _scale_box(box, scale)
    name = shorten_text(box.name, _NAME_SIZE, picture.width - 2 * _NAME_PADDING)
    width = round(measure_width(name, _NAME_SIZE)) + 2 * _NAME_PADDING
    x = max(0, min(left, picture.width - width))
    y = top - _NAME_HEIGHT if top >= _NAME_HEIGHT else top
    ImageDraw.Draw(picture).rectangle((x, y, x + width - 1, y + _NAME_HEIGHT - 1), fill=box.colour)
    draw_text(picture, (x + _NAME_PADDING, y), name, _NAME_SIZE, choose_text_colour(box.colour))


def _draw_point(picture: Image.Image, point: ShownPoint, scale: tuple[float, float]) -> None:
    x, y, radius = point.x * scale[0], point.y * scale[1], _POINT_RADIUS
    around = (x - radius, y - radius, x + radius, y + radius)
    ImageDraw.Draw(picture).ellipse(around, fill=point.colour, outline=_RIM)
